"""A node on another host, as the launcher's supervisor sees it."""

import time
from collections.abc import Callable
from typing import Any

from distrl.launch.supervision.node import SupervisedNode
from distrl.launch.supervision.node_logs import NodeLog
from distrl.launch.supervision.restart_policy import RestartPolicy
from distrl.launch.supervision.result import NodeExit
from distrl.launch.supervision.usage import Usage
from distrl.runtime.heartbeat import DOWN, Heartbeat, HeartbeatTable

SILENT_S = 10.0  # seconds without a message from a host's daemon, which sends one every second


class RemoteHeartbeat(Heartbeat):
    """Notifies all hosts when its node starts or ends, so that the node's callers know.

    Args:
      heartbeats: the launcher's table.
      name: the node's name.
      on_change: called with the node's name.
    """

    def __init__(
        self, heartbeats: HeartbeatTable, name: str, on_change: Callable[[str], None]
    ) -> None:
        heartbeat = heartbeats.of(name)
        assert heartbeat is not None
        super().__init__(heartbeat._values, heartbeats)
        self._name = name
        self._on_change = on_change

    def begin(self, life: int) -> None:
        """See `Heartbeat.begin`."""
        super().begin(life)
        self._on_change(self._name)

    def end(self, comes_back: bool, host_lost: bool = False) -> None:
        """See `Heartbeat.end`."""
        super().end(comes_back, host_lost)
        self._on_change(self._name)


class SupervisedRemoteNode(SupervisedNode):
    """A node that runs on another host, under that host's daemon.

    Args:
      name, label, log, heartbeat, restart_policy: see `SupervisedNode`.
      host: name of its host.
      send: sends a message to the host's daemon: its kind, and fields.
    """

    kill_timeout = SILENT_S  # until the host counts as lost

    def __init__(
        self,
        name: str,
        label: str,
        log: NodeLog,
        heartbeat: Heartbeat,
        restart_policy: RestartPolicy,
        host: str,
        send: Callable[..., None],
    ) -> None:
        super().__init__(name, label, log, heartbeat, restart_policy)
        self.host = host
        self.pid: int | None = None
        self._send = send
        self._usage: Usage | None = None
        self._exit_fields: dict[str, Any] | None = None  # once it has ended, until `collect`

    def start(self) -> None:
        self.exit = NodeExit(causes=self.history.causes, state="running")
        self._exit_fields, self._usage, self.pid = None, None, None
        self.started = time.monotonic()
        self.alive = True
        heartbeat = self.heartbeat
        self._send("start", node=self.name, life=heartbeat.life, acted=heartbeat.acted)
        if self.unavailable_reason is not None:  # nobody has got that message
            self.lose(self.unavailable_reason)

    def usage(self) -> Usage | None:
        return self._usage

    def reported(
        self, at_work: float | None, silent: float | None, pid: int, usage: Usage, acted: int
    ) -> None:
        """Takes the daemon's report, which comes about once a second.

        Args:
          at_work, silent: see `Heartbeat.at_work` and `Heartbeat.silent`.
          pid: the node's process on its host.
          usage: what the process uses.
          acted: see `Heartbeat.acted`.
        """
        if self.alive:
            self._usage, self.pid = usage, pid
            self.heartbeat.mirror_activity(at_work is not None, at_work or 0.0, silent)
            self.heartbeat.mirror_acted(acted)

    def exited(self, acted: int, exit_fields: dict[str, Any]) -> None:
        """Notes that the node has ended.

        Args:
          acted: see `Heartbeat.acted`.
          exit_fields: fields of a `NodeExit`.
        """
        self.heartbeat.mirror_acted(acted)
        self._exit_fields = exit_fields

    def lose(self, reason: str) -> None:
        """Notes that the host is lost: the node counts as ended, and cannot be restarted yet."""
        self.unavailable_reason = reason
        if self.alive and self._exit_fields is None:
            self._exit_fields = {"state": "failed", "error": reason}
        elif self.heartbeat.status == DOWN:  # it was to be restarted
            self.heartbeat.end(True, host_lost=True)

    def collect(self) -> bool:
        if self._exit_fields is None:
            return False
        for name in ("state", "code", "signal", "error"):
            value = self._exit_fields.get(name)
            if value is not None:
                setattr(self.exit, name, value)
        self.exit.seconds = time.monotonic() - self.started
        self._exit_fields, self.alive, self._usage = None, False, None
        return True

    def wake(self) -> None:
        self._send("wake", node=self.name)

    def ask_to_stop(self) -> None:
        self._send("stop", node=self.name)

    def kill(self) -> None:
        self._send("kill", node=self.name)

    def show_stacks(self, also_if_stopped: bool = False) -> None:
        self._send("stacks", node=self.name, also_if_stopped=also_if_stopped)
