"""`status.json` of a run folder: the launcher writes it, `distrl status` and others read it."""

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from distrl.errors import ConfigError
from distrl.launch.supervision.launcher_process import (
    LauncherProcess,
    is_locked,
    launcher_of,
)
from distrl.launch.supervision.result import RESULT_FILE, NodeExit
from distrl.launch.supervision.usage import Usage
from distrl.runtime.files import read_dict, write_json
from distrl.runtime.heartbeat import ABSENT, DOWN, LOST, UP, Heartbeat
from distrl.runtime.process_stat import process_stat

FILE_NAME = "status.json"
_STATUS_NAMES = {ABSENT: "not started", UP: "up", DOWN: "restarting", LOST: "restarting"}
_WRITE_INTERVAL_S = 2.0


class Node(Protocol):
    """What the file says about a `SupervisedNode`, or about a process without nodes."""

    name: str
    host: str
    alive: bool
    started: float
    unavailable_reason: str | None
    heartbeat: Heartbeat
    exit: NodeExit

    def usage(self) -> Usage | None:
        """See `SupervisedNode.usage`."""


class StatusFile:
    """Writes the status of a program's nodes to a file.

    Args:
      path: the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._launcher = LauncherProcess.this()
        self._next_write = 0.0
        self._written: dict[str, Any] = {}
        self._cpu: dict[str, tuple[float, float]] = {}  # by node: time and CPU seconds, last write

    @property
    def is_due(self) -> bool:
        """Whether the file is to be written, or a write that failed is to be tried again."""
        return time.monotonic() >= self._next_write

    def write(self, nodes: Sequence["Node"]) -> None:
        """Writes the file atomically."""
        now = time.monotonic()
        self._next_write = now + _WRITE_INTERVAL_S
        self._written = {
            "time": time.time(),
            "monotonic": now,  # seconds since this machine's boot: no one can set it
            "launcher": self._launcher.pid,
            "launched_as": self._launcher._asdict(),
            "process": os.getpid(),  # its own; the former passes signals on
            "nodes": {node.name: self._node_status(node, now) for node in nodes},
        }
        write_json(self._path, self._written, durable=False)

    def current(self) -> dict[str, Any]:
        """Returns what was written last."""
        return self._written

    def _node_status(self, node: "Node", now: float) -> dict[str, Any]:
        heartbeat = node.heartbeat
        usage = node.usage() if node.alive else None
        status: dict[str, Any] = {
            "status": "host lost"
            if node.unavailable_reason
            else _STATUS_NAMES.get(heartbeat.status, "ended"),
            "host": node.host,
            "pid": getattr(node, "pid", self._launcher.pid) if node.alive else None,
            "life": heartbeat.life,
            "restarts": len(node.exit.causes),
        }
        if usage is not None:
            then, cpu = self._cpu.get(node.name, (node.started, 0.0))
            self._cpu[node.name] = now, usage.cpu
            status["cores"] = round(max(0.0, usage.cpu - cpu) / max(now - then, 1e-3), 2)
            status["resident_mb"] = round(usage.resident / 1e6, 1)
            status["shared_mb"] = round(usage.shared / 1e6, 1)
            stuck = heartbeat.at_work()
            status["seconds_since_progress"] = None if stuck is None else round(stuck, 1)
        return status


def read_status(run_dir: str, command: str) -> dict[str, Any]:
    """Returns the contents of a running program's status file.

    Args:
      run_dir: the run folder.
      command: what needs it, for messages.

    Raises:
      ConfigError: `run_dir` is not the folder of a run, or its program is starting, or has ended.
    """
    path = Path(run_dir) / FILE_NAME
    locked = is_locked(Path(run_dir))
    holder = launcher_of(Path(run_dir)) if locked else None
    if not path.exists():
        if locked:
            raise _is_starting(run_dir, holder)
        raise ConfigError(f"{command}: {run_dir}: no {FILE_NAME} there; name the folder of a run")
    status = read_dict(path, lambda data: data.keys() >= {"time", "launcher", "nodes"})
    if status is None:
        raise ConfigError(f"{path} is damaged; a running program writes it again within seconds")
    launcher = launcher_in(status)
    if holder is not None and not launcher.is_same(holder):  # it is of the program before
        raise _is_starting(run_dir, holder)
    if launcher.is_elsewhere:  # so is its clock since boot
        status.pop("monotonic", None)
    status.setdefault("monotonic", time.monotonic() - (time.time() - status["time"]))
    # The launcher of a copied folder may live, but not there.
    if not (locked if launcher.is_elsewhere else launcher.lives and locked is not False):
        raise ConfigError(f"{run_dir}: {_how_it_ended(Path(run_dir), launcher)}")
    return status


def _is_starting(run_dir: str, launcher: LauncherProcess | None) -> ConfigError:
    name = "" if launcher is None else f", {launcher.name},"
    return ConfigError(f"{run_dir}: its program{name} is starting; it has no nodes yet")


def _how_it_ended(run_dir: Path, launcher: LauncherProcess) -> str:
    result = read_dict(run_dir / RESULT_FILE, lambda data: data.keys() >= {"status", "reason"})
    if result is None and launcher.lives:
        return (
            f"nothing runs there: its program, {launcher.name}, runs in the folder it is a copy of"
        )
    if result is None:
        return f"its program, {launcher.name}, has ended, without a result"
    return f"{result['status']}: {result['reason']} (exit status {result.get('exit_code')})"


def launcher_in(status: Mapping[str, Any]) -> LauncherProcess:
    """Returns the process that a status file's program was started as."""
    launcher = LauncherProcess.parsed(status.get("launched_as"))
    return launcher or LauncherProcess(status["launcher"])  # an older version's


def suspension(status: Mapping[str, Any]) -> str | None:
    """Returns a sentence if the launcher is suspended, so that the status is old; else None."""
    pid = status.get("process", status["launcher"])
    if launcher_in(status).is_elsewhere:
        return None
    stat = process_stat(pid)
    if stat is None or stat.state not in "Tt":
        return None
    return (
        f"the launcher, process {pid}, is suspended (Ctrl-Z or SIGSTOP), and its nodes are not "
        f"supervised: `kill -CONT {pid}` wakes it"
    )
