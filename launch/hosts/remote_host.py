"""A host of the program as the launcher sees it, and its nodes as workers of the supervisor."""

import base64
import enum
import os
import pathlib
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from distrl.errors import ConfigError
from distrl.launch.hosts import ssh
from distrl.launch.hosts.channel import JsonLineChannel
from distrl.launch.hosts.code_identity import difference
from distrl.launch.supervision.node import KILL_S, Message, SupervisedNode
from distrl.launch.supervision.node_logs import NodeLog
from distrl.launch.supervision.restart_policy import RestartPolicy
from distrl.launch.supervision.result import NodeExit
from distrl.launch.supervision.session import Session
from distrl.launch.supervision.signals import run_once
from distrl.launch.supervision.watchdog import Usage
from distrl.programs.placement import Host
from distrl.runtime.heartbeat import Heartbeat, HeartbeatTable

SILENT_S = 10.0  # without a word from an agent, which speaks every second
STARTS_S = 60.0  # for an agent to be ready: it imports everything
AGAIN_S = 3.0  # between two attempts to reach a host
PING_S = 1.0
ENDS_S = 1.0  # for what connects to an agent to end, when the connection has


class State(enum.Enum):
    """Of a host: not reached, its agent starts, it has its ports, it runs nodes."""

    AWAY = "away"
    STARTING = "starting"
    READY = "ready"
    UP = "up"


class RemoteHost:
    """One host: keeps a connection to its agent, and passes on what is said.

    Args:
      host: which.
      command: that connects to its agent, see `transports`; empty: the agent comes by itself.
      own: names of its nodes.
      session: of the launch.
      begin: what the agent is told first.
      ours: the launcher's own identity.
      ready: called when the agent has told its ports.
      errors: file for what the connection says.
    """

    def __init__(
        self,
        host: Host,
        command: Sequence[str],
        own: Sequence[str],
        session: Session,
        begin: Mapping[str, Any],
        ours: Mapping[str, str],
        ready: Callable[["RemoteHost"], None],
        errors: pathlib.Path,
    ) -> None:
        self.host = host
        self.state = State.AWAY
        self.refused: str | None = None  # why it cannot be used at all
        self.why = "it was not reached yet"  # it is away
        self.ports: dict[str, list[int]] = {}
        self.tunnel = 0
        self.workers: dict[str, SupervisedRemoteNode] = {}
        self._command = command
        self._own = own
        self._session = session
        self._begin = begin
        self._ours = ours
        self._ready = ready
        self._errors = errors
        self._process: subprocess.Popen[bytes] | None = None
        self._lines: JsonLineChannel | None = None
        self._heard = self._pinged = 0.0
        self._next = 0.0

    def tick(self) -> None:
        """From time to time: pings, notices silence, tries again to reach it."""
        now = time.monotonic()
        if self._lines is None:
            if self._command and now >= self._next and self.refused is None:
                self._connect()
            return
        if now - self._pinged >= PING_S:
            self._pinged = now
            self._lines.send("ping")
        patience = SILENT_S if self.state is State.UP else STARTS_S
        if now - self._heard > patience:
            self._lost(f"no word from its agent for {patience:g} s")

    def send(self, kind: str, **fields: Any) -> None:
        """To the agent, if it is there."""
        if self._lines is not None:
            self._lines.send(kind, **fields)

    def wire(self, others: Mapping[str, list[tuple[str, int, int]]]) -> None:
        """Tells the agent where the other hosts' nodes are; it is up when it has answered."""
        self.send("wire", others=others)

    def close(self, wait: float = 5.0) -> None:
        """Says goodbye, waits for the agent to end, and ends the connection."""
        self.state = State.AWAY  # it is no loss now
        self.send("bye")
        deadline = time.monotonic() + wait
        while self._lines is not None and time.monotonic() < deadline:
            run_once(self._session.supervisor.selector, 0.1)
        self._end_connection(wait)

    def fails_with(self) -> str:
        """The last lines of what the connection said, for messages."""
        try:
            lines = self._errors.read_text(errors="replace").splitlines()[-3:]
        except OSError:
            return ""
        return f" ({' | '.join(line.strip() for line in lines)})" if lines else ""

    def _connect(self) -> None:
        self._next = time.monotonic() + AGAIN_S
        with open(self._errors, "ab") as errors:
            self._process = ssh.start(self._command, errors.fileno())
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        reader, writer = os.dup(process.stdout.fileno()), os.dup(process.stdin.fileno())
        process.stdin.close()
        process.stdout.close()
        selector = self._session.supervisor.selector
        self.attach(JsonLineChannel(selector, reader, writer, self._take, self._lost))

    def attach(self, lines: JsonLineChannel) -> None:
        """Takes a connection to the agent."""
        lines.take, lines.ended = self._take, self._lost
        self._lines = lines
        self._heard = self._pinged = time.monotonic()
        self.state = State.STARTING

    def _end_connection(self, wait: float) -> None:
        if self._lines is not None:
            self._lines.close()
            self._lines = None
        process, self._process = self._process, None
        if process is None:
            return
        try:
            process.wait(wait)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(KILL_S)

    def _lost(self, why: str) -> None:
        was, self.state = self.state, State.AWAY
        self._end_connection(ENDS_S)
        self._next = time.monotonic() + AGAIN_S
        self.why = f"host {self.host.name} is lost: {why}{self.fails_with()}"
        if was is State.UP:
            self._session.journal.say(self.why)
            for worker in self.workers.values():
                worker.lose(self.why)

    def _take(self, message: dict[str, Any]) -> None:
        self._heard = time.monotonic()
        getattr(self, f"_on_{message.pop('kind')}")(**message)

    def _on_hello(self, **said: Any) -> None:
        self.greeted(said["identity"], said["host"], said["cores"], said["gpus"])

    def greeted(self, identity: dict[str, str], host: str, cores: int, gpus: str | None) -> None:
        """The agent has said who it is: is told to begin, or refused."""
        self.refused = difference(self.host.name, identity, self._ours)
        self._session.journal.note(f"{self.host.name} is {host}: {cores} cores, GPUs {gpus}")
        if self.refused is None:
            self.send("begin", **self._begin, own=list(self._own))
        else:
            self._lost(self.refused)

    def _on_broken(self, error: str, traceback: str) -> None:
        self._session.journal.note(f"the agent of {self.host.name}:\n{traceback}")
        self.refused = f"host {self.host.name}: {error}"
        self._lost(error)

    def _on_ready(self, ports: dict[str, list[int]], tunnel: int) -> None:
        self.ports, self.tunnel = ports, tunnel
        self.state = State.READY
        self._ready(self)

    def _on_wired(self) -> None:
        self.state = State.UP
        for worker in self.workers.values():
            worker.unavailable_reason = None

    def _on_report(self, nodes: dict[str, list[Any]]) -> None:
        for name, (at_work, silent, pid, usage) in nodes.items():
            self.workers[name].reported(at_work, silent, pid, Usage(**usage))

    def _on_output(self, node: str, data: str) -> None:
        self.workers[node].log.feed(base64.b64decode(data))

    def _on_message(self, age: float, what: str, **fields: Any) -> None:
        message = Message(time.monotonic() - age, kind=what, **fields)
        self._session.supervisor.messages.append(message)

    def _on_exit(self, node: str, **how: Any) -> None:
        self.workers[node].exited(how)


class RemoteHeartbeat(Heartbeat):
    """Tells all hosts when its node comes or goes, so that its callers know."""

    def __init__(
        self, heartbeats: HeartbeatTable, name: str, changed: Callable[[str, Heartbeat], None]
    ) -> None:
        own = heartbeats.of(name)
        assert own is not None
        super().__init__(own._values, heartbeats)
        self._name = name
        self._changed = changed

    def begin(self, life: int) -> None:
        """See `Heartbeat.begin`."""
        super().begin(life)
        self._changed(self._name, self)

    def end(self, comes_back: bool) -> None:
        """See `Heartbeat.end`."""
        super().end(comes_back)
        self._changed(self._name, self)


class SupervisedRemoteNode(SupervisedNode):
    """A node on a host of its own, run by the agent there."""

    kill_timeout = SILENT_S  # until the host counts as lost

    def __init__(
        self,
        name: str,
        label: str,
        log: NodeLog,
        heartbeat: Heartbeat,
        rule: RestartPolicy,
        machine: RemoteHost,
    ) -> None:
        super().__init__(name, label, log, heartbeat, rule)
        self.host = machine.host.name
        self.pid: int | None = None
        self._machine = machine
        self._usage: Usage | None = None
        self._how: dict[str, Any] | None = None
        machine.workers[name] = self

    def start(self) -> None:
        self.exit = NodeExit(causes=self.history.causes, state="running")
        self._how, self._usage, self.pid = None, None, None
        self.started = time.monotonic()
        self.alive = True
        self._machine.send("start", node=self.name, life=self.heartbeat.life)

    def usage(self) -> Usage | None:
        return self._usage

    def reported(self, at_work: float | None, silent: float | None, pid: int, usage: Usage) -> None:
        """What its agent says of it, about once a second."""
        if self.alive:
            self._usage, self.pid = usage, pid
            self.heartbeat.told(at_work is not None, at_work or 0.0, silent)

    def exited(self, how: dict[str, Any]) -> None:
        """The node has ended. Args: how: fields of a NodeExit."""
        self._how = how

    def lose(self, why: str) -> None:
        """Its host is lost: it counts as ended, and cannot be started now."""
        self.unavailable_reason = why
        if self.alive and self._how is None:
            self._how = {"state": "failed", "error": why}

    def collect(self) -> bool:
        if self._how is None:
            return False
        for name in ("state", "code", "signal", "error"):
            value = self._how.get(name)
            if value is not None:
                setattr(self.exit, name, value)
        self.exit.seconds = time.monotonic() - self.started
        self._how, self.alive, self._usage = None, False, None
        return True

    def ask_to_stop(self) -> None:
        self._machine.send("stop", node=self.name)

    def kill(self) -> None:
        self._machine.send("kill", node=self.name)

    def show_stacks(self, also_if_stopped: bool = False) -> None:
        self._machine.send("stacks", node=self.name, also_if_stopped=also_if_stopped)


def check_refused(machines: Sequence[RemoteHost]) -> None:
    """Raises ConfigError where a host cannot be used."""
    for machine in machines:
        if machine.refused is not None:
            raise ConfigError(machine.refused)
