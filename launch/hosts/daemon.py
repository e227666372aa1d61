"""The host daemon: runs the nodes placed on its host, on the launcher's orders.

Run as a module, its stdin and stdout are the connection to the launcher. It ends, with everything
that it has started, when the connection ends or is silent for `LEASE_S`.
"""

import collections
import contextlib
import dataclasses
import functools
import os
import pathlib
import selectors
import shutil
import signal
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from distrl.launch.hosts.channel import JsonLineChannel
from distrl.launch.hosts.code_identity import identity
from distrl.launch.hosts.console import Console
from distrl.launch.hosts.forwarded_log import ForwardedLog
from distrl.launch.hosts.host_nodes import HostNodes
from distrl.launch.hosts.ray_actor import ADDRESS_VARIABLE
from distrl.launch.network.private_folder import new_folder
from distrl.launch.network.tunnel_process import SealedTunnel, end_tunnel, has_ended
from distrl.launch.supervision.housekeeping import Housekeeping
from distrl.launch.supervision.running_time import Silence
from distrl.launch.supervision.signals import Signals, run_once
from distrl.runtime.sockets import listen_on_all_interfaces

if TYPE_CHECKING:
    from distrl.launch.hosts.host_program import RemoteAddresses, RequiredHosts

LEASE_S = 10.0  # seconds without a message from the launcher, which sends one every second
REPORT_S = 1.0
TUNNEL_ENDED = "its tunnel to the other hosts has ended"
SLOW = ("begin", "wire", "stacks")  # they take long: imports, building the program, py-spy


class HostDaemon:
    """Runs a host's nodes for a launcher. It is a `node_pipes.Hub`.

    A step of its loop that the operating system refuses is tried again. If that lasts, or a step
    fails in another way, the daemon ends, with its nodes.

    Args:
      reader, writer: descriptors of the connection to the launcher.
      folder: a private folder for sockets.
      launcher_tunnel: pid of the tunnel that carries the connection; 0: it needs none.
      hello: fields of the first message besides those that the daemon finds out itself.
      reconnect_command: the command that replaces this process when the launcher is lost; None:
        the process ends.
      tunnel_port: port for the other hosts' connections; 0: the launcher chooses it.
    """

    def __init__(
        self,
        reader: int,
        writer: int,
        folder: pathlib.Path,
        launcher_tunnel: int = 0,
        hello: Mapping[str, Any] | None = None,
        reconnect_command: list[str] | None = None,
        tunnel_port: int = 0,
    ) -> None:
        self.selector: selectors.BaseSelector = selectors.DefaultSelector()
        self.messages: collections.deque[Any] = collections.deque()
        self._console = Console()
        self._housekeeping = Housekeeping(self._console)
        self._folder = folder
        self._tunnel: SealedTunnel | None = None
        self._launcher_tunnel = launcher_tunnel
        self._hello = dict(hello or {})
        self._reconnect_command = reconnect_command
        self._tunnel_port = tunnel_port
        self._asked = 0  # the signal by which it was asked to end
        self._required: set[tuple[str, int]] = set()
        self._reached: set[tuple[str, int]] = set()  # at some time
        self._wired = False
        self._silence = Silence()
        self._last_report = time.monotonic()
        self._channel = JsonLineChannel(self.selector, reader, writer, self._handle, self._leave)
        self._nodes = HostNodes(self._channel.send, self._forward_messages, self._housekeeping)

    def run(self) -> NoReturn:
        """Runs until the launcher says goodbye or is lost."""
        self._tunnel = SealedTunnel()
        with Signals() as signals:
            self._signals = signals
            self.selector.register(signals, selectors.EVENT_READ)
            self._channel.send(
                "hello",
                identity=identity(),
                host=os.uname().nodename,
                cores=len(os.sched_getaffinity(0)),
                gpus=os.environ.get("CUDA_VISIBLE_DEVICES"),
                tunnel_key=self._tunnel.public_key,
                **self._hello,
            )
            while True:
                self._attempt("waiting for events", lambda: run_once(self.selector, 0.2))
                self._attempt("reading signals", self._take_signals)
                self._attempt("signalling nodes", self._nodes.try_again)
                for name in self._nodes.by_name:
                    collect = functools.partial(self._nodes.collect, name)
                    self._attempt(f"collecting {name}", collect)
                self._forward_messages()
                now = time.monotonic()
                if now - self._last_report >= REPORT_S:
                    self._last_report = now
                    self._attempt("checking the tunnel", self._check_tunnel)
                    self._channel.send("report", nodes=self._nodes.report())  # and sign of life
                if self._silence.seconds(now) > LEASE_S:
                    self._leave(f"no message from the launcher for {LEASE_S:g} s")

    def _attempt(self, what: str, step: Callable[[], object]) -> None:
        """Does a step of the loop, or ends the daemon; see the class."""
        failure = self._housekeeping.attempt_step(what, step)
        if failure is not None:
            if failure.traceback:
                self._console.say(failure.traceback)
            self._leave(failure.cause)

    def _take_signals(self) -> None:
        """Ends the daemon if it is asked to while none of its nodes runs.

        While one does, the launcher decides when: what signals all processes of a job, as Slurm
        does, also signals the launcher, which stops the nodes of all hosts in order.
        """
        for number in self._signals.pending():
            if number != signal.SIGCHLD:
                self._asked = number
                if not self._nodes.any_alive():
                    self._leave(signal.Signals(number).name)

    # Messages from the launcher.

    def _handle(self, message: dict[str, Any]) -> None:
        self._silence.end()
        kind = message.pop("kind")
        try:
            with self._channel.kept_alive() if kind in SLOW else contextlib.nullcontext():
                getattr(self, f"_on_{kind}")(**message)
        except Exception as error:
            self._channel.send(
                "broken",
                error=f"{type(error).__name__}: {error}",
                traceback="".join(traceback.format_exception(error)),
                passing=isinstance(error, OSError),  # a port that is taken, a folder not mounted
            )

    def _on_ping(self) -> None:
        """Does nothing: the message itself is the sign of life."""

    def _on_begin(self, payload: str, nodes: list[str], tunnel_port: int, credentials: str) -> None:
        """Builds the program, and answers with the ports of this host's nodes.

        Args:
          payload: the pickled program and what belongs to it.
          nodes: names of this host's nodes.
          tunnel_port: the launcher's choice of a port for the other hosts; 0: any free one.
          credentials: the program's credentials, which only the tunnel's process can open.
        """
        from distrl.runtime.compilation_cache import use_compilation_cache

        use_compilation_cache()
        from distrl.launch.hosts.host_program import HostProgram

        self._sealed = credentials
        self._program = HostProgram(payload, nodes, self._folder)
        fixed = self._tunnel_port or tunnel_port
        try:
            self._listener = listen_on_all_interfaces(fixed)
        except OSError as error:
            cause = os.strerror(error.errno or 0)
            raise OSError(f"cannot listen on port {fixed} (--tunnel_port): {cause}") from error
        port = self._listener.getsockname()[1]
        self._channel.send("ready", ports=self._program.ports, tunnel_port=port)

    def _on_wire(self, remote_addresses: "RemoteAddresses", required: "RequiredHosts") -> None:
        """Resolves the program's addresses, starts the tunnel and prepares this host's nodes."""
        from distrl.launch.local import processes
        from distrl.launch.network import loopback
        from distrl.launch.supervision.restart_policy import RestartPolicy

        processes.check_can_fork()
        loopback.check()
        for node, heartbeat, environment in self._program.own_nodes():
            self._nodes.by_name[node.name] = processes.SupervisedProcess(
                node,
                ForwardedLog(node.name, self._channel),
                self,
                environment,
                None,
                self._fds,
                heartbeat,
                RestartPolicy(),
                stop_signal=signal.SIGUSR1,  # Slurm sends SIGTERM to all processes of a job
            )
        self._program.wire(self._stopper)
        assert self._tunnel is not None
        program, forwards = self._program, self._program.forwards(remote_addresses)
        self._tunnel.start(self._listener, self._sealed, program.open_ports, forwards, required)
        self.selector.register(self._tunnel, selectors.EVENT_READ, self._hear_tunnel)
        self._required = {(host, port) for host, port in required}
        self._check_reached()

    def _check_reached(self) -> None:
        """Reports that this host is up, once it has reached all hosts that it must."""
        if not self._wired and self._required <= self._reached:
            self._wired = True
            self._channel.send("wired")

    def _hear_tunnel(self) -> None:
        """Passes on whether another host is reached."""
        assert self._tunnel is not None
        try:
            host, port, reason = self._tunnel.news()
        except OSError:
            self._leave(TUNNEL_ENDED)
        self._channel.send("reach", host=host, port=port, reason=reason)
        if not reason:
            self._reached.add((host, port))
            self._check_reached()

    def _on_rewire(self, remote_addresses: "RemoteAddresses", required: "RequiredHosts") -> None:
        """Directs new connections to where the servers of other hosts are now."""
        assert self._tunnel is not None
        self._required = {(host, port) for host, port in required}
        forwards = self._program.forwards(remote_addresses)
        try:
            self._tunnel.forward_to(forwards, self._required - self._reached)
        except OSError:
            self._leave(TUNNEL_ENDED)
        self._check_reached()

    def _stopper(self, name: str) -> Any:
        from distrl.launch.local.node_hooks import Stopper

        node = self._nodes.by_name.get(name)
        return Stopper(name, node.send if node is not None else self.messages.append)

    def _on_heartbeats(self, heartbeats: dict[str, list[int]]) -> None:
        self._program.mirror(heartbeats)

    def _on_start(self, node: str, life: int, acted: int) -> None:
        self._nodes.start(node, life, acted)

    def _on_wake(self, node: str) -> None:
        self._nodes.signal(node, "wake")

    def _on_stop(self, node: str) -> None:
        self._nodes.signal(node, "ask_to_stop")

    def _on_kill(self, node: str) -> None:
        self._nodes.signal(node, "kill")

    def _on_stacks(self, node: str, also_if_stopped: bool) -> None:
        self._nodes.show_stacks(node, also_if_stopped)

    def _on_refused(self, reason: str) -> None:
        self._leave(reason, reconnect=False)

    def _on_bye(self) -> None:
        self._leave("")

    # Messages to the launcher.

    def _forward_messages(self) -> None:
        while self.messages:
            message = dataclasses.asdict(self.messages.popleft())
            message["age"] = time.monotonic() - message.pop("time")
            message["node_message"] = message.pop("kind")
            self._channel.send("message", **message)

    def _check_tunnel(self) -> None:
        if self._tunnel and has_ended(self._tunnel.pid):
            self._tunnel = None
            self._leave(TUNNEL_ENDED)

    # Processes.

    def _fds(self) -> Iterable[int]:
        """Yields the descriptors that a node's process closes."""
        yield from self._signals.fds()
        yield from self._channel.fds()
        yield from self._program.fds()
        if self._tunnel:
            yield from self._tunnel.fds()
        yield self._listener.fileno()
        yield self.selector.fileno()  # type: ignore[attr-defined]
        for node in self._nodes.by_name.values():
            yield from node.fds()

    def _leave(self, reason: str, reconnect: bool = True) -> NoReturn:
        """Ends this process and everything that it has started.

        Args:
          reason: why, for the log; "": the launcher said goodbye.
          reconnect: whether to wait for the launcher again, if there is a reason, and no signal has
            asked the daemon to end.
        """
        if reason:
            self._console.say(f"{reason}; ending{' its nodes' if self._nodes.by_name else ''}")
        self._nodes.destroy(self._console.try_to)
        for pid in filter(None, (self._tunnel.pid if self._tunnel else 0, self._launcher_tunnel)):
            self._console.try_to("ending a tunnel", functools.partial(end_tunnel, pid))
        shutil.rmtree(self._folder, ignore_errors=True)
        command = self._reconnect_command
        if reason and command is not None and reconnect and not self._asked:
            start_again = functools.partial(os.execv, command[0], command)
            self._console.try_to(f"starting {command[0]} again", start_again)
        os._exit(0 if not reason else 128 + self._asked if self._asked else 1)


def main() -> NoReturn:
    """Runs a daemon on stdin and stdout; everything else that is printed goes to stderr."""
    reader, writer = os.dup(0), os.dup(1)
    os.set_inheritable(reader, False)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    hello = {"address": os.environ.get(ADDRESS_VARIABLE)}
    HostDaemon(reader, writer, new_folder(), hello=hello).run()


if __name__ == "__main__":
    main()
