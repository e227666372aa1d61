"""A host of the program, as the launcher sees it: the connection to its daemon."""

import base64
import enum
import pathlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from distrl.errors import ConfigError
from distrl.launch.hosts.channel import JsonLineChannel
from distrl.launch.hosts.code_identity import difference
from distrl.launch.hosts.connecting_command import ConnectingCommand
from distrl.launch.hosts.remote_node import SILENT_S, SupervisedRemoteNode
from distrl.launch.network.reach import advice
from distrl.launch.supervision.node import Message
from distrl.launch.supervision.running_time import Silence
from distrl.launch.supervision.session import Session
from distrl.launch.supervision.usage import Usage
from distrl.programs.placement import Host
from distrl.runtime.heartbeat import Heartbeat

START_S = 60.0  # seconds without a sign of life from a daemon that is not up yet
RETRY_S = 3.0  # between two attempts to reach a host
MAX_RETRY_S = 60.0  # doubled up to this while its daemon answers but cannot be used
PING_S = 1.0
DISCONNECT_S = 1.0  # for the connecting command to end after the connection; then it is killed


class HostState(enum.Enum):
    """A host's state as the launcher sees it."""

    AWAY = "away"  # no connection to its daemon
    STARTING = "starting"  # connected; the daemon builds the program
    READY = "ready"  # its nodes' ports are known
    UP = "up"  # it can run nodes


class RemoteHost:
    """Keeps a connection to a host's daemon, and passes messages on.

    Args:
      host: the host.
      command: the command that starts and connects to its daemon, see `distrl.launch.hosts.ssh`;
        empty: the daemon connects to the launcher.
      node_names: names of the host's nodes.
      session: the launch.
      begin: fields of the first message to the daemon.
      seal: returns the program's credentials for a public key, see `distrl.launch.network.sealing`.
      identity: the launcher's `code_identity.identity()`.
      on_ready: called when the daemon has sent its nodes' ports.
      error_log: file for the stderr of `command`.
    """

    def __init__(
        self,
        host: Host,
        command: Sequence[str],
        node_names: Sequence[str],
        session: Session,
        begin: Mapping[str, Any],
        seal: Callable[[str], str],
        identity: Mapping[str, str],
        on_ready: Callable[[], None],
        error_log: pathlib.Path,
    ) -> None:
        self.host = host
        self.state = HostState.AWAY
        self.refused: str | None = None  # why the program cannot be started with this host
        self.kept = False  # its daemon is to wait for the next launcher when this one ends
        self.away_because = "it has not been reached yet"
        self.ports: dict[str, list[int]] = {}  # by node
        self.tunnel_port = 0
        self.address = host.reached_at  # for the other hosts
        self.nodes: dict[str, SupervisedRemoteNode] = {}
        self.heartbeats: dict[str, Heartbeat] = {}  # those of all hosts' nodes
        self.essential: set[str] = set()  # names of nodes whose hosts this host must reach
        self.unreachable: dict[str, str] = {}  # ports of other hosts' tunnels, and why
        self._command = command
        self._node_names = node_names
        self._session = session
        self._begin = begin
        self._seal = seal
        self._identity = identity
        self._on_ready_callback = on_ready
        self._connecting = ConnectingCommand(error_log)
        self._channel: JsonLineChannel | None = None
        self._wired = False  # it has been sent the other hosts' addresses
        self._silence = Silence()
        self._last_ping = self._next_attempt = 0.0
        self._reached: set[str] = set()  # ports of other hosts' tunnels, at some time
        self._reported: str | None = None  # the failure that was last reported, since it was up
        self._was_up = False  # at some time
        self._refusal_delay = RETRY_S

    def tick(self) -> None:
        """Pings the daemon, notices its silence, or reconnects; called about once a second."""
        self.reap()
        now = time.monotonic()
        silent = self._silence.seconds(now)
        if self._channel is None:
            if self._command and now >= self._next_attempt:
                self._connect()
            return
        if now - self._last_ping >= PING_S:
            self._last_ping = now
            self._channel.send("ping")
        starting = self.state is not HostState.UP
        limit = START_S if starting else SILENT_S
        if silent > limit:
            when = ", while it started" if starting else ""
            self._lost(f"no message from its daemon for {limit:g} s{when}", shown=True)

    def why_late(self) -> str:
        """Returns why the host is not up, for messages."""
        if self.state is HostState.AWAY:
            return self.away_because
        if self.state is HostState.STARTING:
            return "its daemon is still importing and building the program"
        if self.unreachable:
            return "; ".join(f"it {self._cut_off(*each)}" for each in self.unreachable.items())
        return "its daemon waits for other hosts"

    def send(self, kind: str, **fields: Any) -> None:
        """Sends a message to the daemon, if it is connected."""
        if self._channel is not None:
            self._channel.send(kind, **fields)

    def send_status(self, names: Iterable[str]) -> None:
        """Sends the daemon the status of these nodes; before the host is up, it cannot use it."""
        if self.state is HostState.UP:
            rows = {name: self.heartbeats[name] for name in names}
            states = {name: [row.status, row.life, row.acted] for name, row in rows.items()}
            self.send("heartbeats", heartbeats=states)

    def wire(self, remote_addresses: Mapping[str, list[tuple[str, int, int]]]) -> None:
        """Sends the addresses of the other hosts' nodes, again if they have changed.

        The host is up when it has answered the first time.
        """
        required = {
            (host, port)
            for name in self.essential & remote_addresses.keys()
            for host, port, _ in remote_addresses[name]
        }
        kind = "rewire" if self._wired else "wire"
        self.send(kind, remote_addresses=remote_addresses, required=sorted(required))
        self._wired = True
        if self.state is not HostState.UP:  # what was required before may be no host's any more
            ports = [f"{host}:{port}" for host, port in required]
            self.unreachable = {at: self.unreachable[at] for at in ports if at in self.unreachable}

    @property
    def connected(self) -> bool:
        """Whether there is a connection to its daemon."""
        return self._channel is not None

    def say_goodbye(self) -> None:
        """Ends the daemon, unless it is `kept`; see `distrl.launch.hosts.goodbye`."""
        self.state, self._reported = HostState.AWAY, ""  # so that its end is no loss
        if not self.kept:
            self.send("bye")

    def disconnect(self, timeout: float) -> None:
        """Closes the connection. Its command has `timeout` seconds to end; then `reap` kills it."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        self._connecting.end(time.monotonic() + timeout)

    def reap(self) -> bool:
        """Returns whether a command that connected to the host has not ended; does not wait."""
        return self._connecting.reap(time.monotonic())

    def _connect(self) -> None:
        self._next_attempt = time.monotonic() + RETRY_S
        try:
            reader, writer = self._connecting.start(self._command)
            selector = self._session.supervisor.selector
            self.attach(JsonLineChannel(selector, reader, writer, self._handle, self._lost))
        except OSError as error:
            self._lost(f"it cannot be connected to: {error}")

    def attach(self, channel: JsonLineChannel) -> None:
        """Takes over a connection to the daemon."""
        channel.on_message, channel.on_close = self._handle, self._lost
        self._channel = channel
        self._silence.end()
        self._last_ping = time.monotonic()
        self.state = HostState.STARTING
        self._wired = False
        self.unreachable = {}

    def _lost(self, reason: str, shown: bool = False) -> None:
        previous, self.state = self.state, HostState.AWAY
        self.disconnect(DISCONNECT_S)
        self._next_attempt = time.monotonic() + RETRY_S
        reason = f"{reason}{self._connecting.last_errors()}"
        self.away_because = f"host {self.host.name} is lost: {reason}"
        if shown or previous is HostState.UP:
            self._session.journal.say(self.away_because)
            self._reported = reason
        elif self._reported is None:
            self._report_trying(f"host {self.host.name}: {reason}")
        if previous is HostState.UP:
            for node in self.nodes.values():
                node.lose(self.away_because)

    def _refuse(self, reason: str, final: bool) -> None:
        """Disconnects from a daemon that answers, but cannot be used.

        Args:
          reason: one line with the host's name.
          final: whether the program cannot be started. Once it runs, no refusal is final: the host
            may be repaired.
        """
        self.state = HostState.AWAY
        self.disconnect(DISCONNECT_S)
        self._next_attempt = time.monotonic() + self._refusal_delay
        self._refusal_delay = min(2 * self._refusal_delay, MAX_RETRY_S)
        self.away_because = reason
        if final and not self._was_up:
            self.refused = reason
        elif reason != self._reported:
            self._report_trying(reason)

    def _report_trying(self, reason: str) -> None:
        then = "trying again" if self._command else "waiting for its daemon"
        self._session.journal.say(f"{reason}; {then}")
        self._reported = reason

    # Messages from the daemon.

    def _handle(self, message: dict[str, Any]) -> None:
        self._silence.end()
        getattr(self, f"_on_{message.pop('kind')}")(**message)

    def _on_hello(self, **hello: Any) -> None:
        self.address = hello.get("address") or self.address
        self.on_hello(
            hello["identity"], hello["host"], hello["cores"], hello["gpus"], hello["tunnel_key"]
        )

    def on_hello(
        self, identity: dict[str, str], host: str, cores: int, gpus: str | None, tunnel_key: str
    ) -> None:
        """Lets a daemon that has introduced itself begin, or refuses it.

        Args:
          identity: the daemon's `code_identity.identity()`.
          host: the name that the host has for itself.
          cores: number of cores that the daemon may use.
          gpus: its CUDA_VISIBLE_DEVICES.
          tunnel_key: public key for which the credentials are sealed.
        """
        other_code = difference(self.host.name, identity, self._identity)
        self._session.journal.note(f"{self.host.name} is {host}: {cores} cores, GPUs {gpus}")
        if other_code is None:
            sealed = self._seal(tunnel_key)
            self.send("begin", **self._begin, nodes=list(self._node_names), credentials=sealed)
        else:
            if self._was_up:
                other_code += "; this program needs what it was started with"
            self._refuse(other_code, final=True)

    def _on_broken(self, error: str, traceback: str, passing: bool = False) -> None:
        """Takes a daemon's failure. Args: passing: whether it may pass without a change."""
        reason = f"host {self.host.name}: {error}"
        if reason != self._reported:
            self._session.journal.note(f"the daemon of host {self.host.name} failed:\n{traceback}")
        if self.state is HostState.UP:
            self._lost(error)
        else:
            self._refuse(reason, final=not passing)

    def _on_alive(self) -> None:
        """Does nothing: the message itself is the sign of life of a daemon that starts."""

    def _on_ready(self, ports: dict[str, list[int]], tunnel_port: int) -> None:
        self.ports, self.tunnel_port = ports, tunnel_port
        self.state = HostState.READY
        self._on_ready_callback()

    def _on_wired(self) -> None:
        self.state = HostState.UP
        self.send_status(self.heartbeats)  # later only what changes
        self._reported, self._was_up, self._refusal_delay = None, True, RETRY_S
        for node in self.nodes.values():
            node.unavailable_reason = None

    def _on_reach(self, host: str, port: int, reason: str) -> None:
        """Notes that its tunnel reaches another host's, or why it does not any more (`reason`)."""
        at = f"{host}:{port}"
        if reason:
            self.unreachable[at] = reason
            what = self._cut_off(at, reason)
            self._session.journal.say(f"{self.host.name} {what}; trying again")
            return
        self._reached.add(at)
        if self.unreachable.pop(at, None) is not None:
            self._session.journal.say(f"{self.host.name} reaches {at}")

    def _cut_off(self, at: str, reason: str) -> str:
        failure = f"cannot reach {at} ({reason})"
        return failure if at in self._reached else f"{failure}: {advice(reason)}"

    def _on_report(self, nodes: dict[str, list[Any]]) -> None:
        for name, (at_work, silent, pid, usage, acted) in nodes.items():
            self.nodes[name].reported(at_work, silent, pid, Usage(**usage), acted)

    def _on_output(self, node: str, data: str) -> None:
        self.nodes[node].log.feed(base64.b64decode(data))

    def _on_message(self, age: float, node_message: str, **fields: Any) -> None:
        message = Message(time.monotonic() - age, kind=node_message, **fields)
        self._session.supervisor.messages.append(message)

    def _on_exit(self, node: str, acted: int, **exit_fields: Any) -> None:
        self.nodes[node].exited(acted, exit_fields)


def check_refused(hosts: Sequence[RemoteHost]) -> None:
    """Raises ConfigError where a host cannot be used."""
    for host in hosts:
        if host.refused is not None:
            raise ConfigError(host.refused)
