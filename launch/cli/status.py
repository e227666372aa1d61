"""`distrl status RUN`: how the nodes of a running program are; the launcher writes it down."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from distrl.errors import ConfigError
from distrl.launch.supervision.node import SupervisedNode
from distrl.runtime.files import write_json
from distrl.runtime.heartbeat import ABSENT, DOWN, UP

_STATUS = {ABSENT: "not started", UP: "up", DOWN: "restarting"}
_EVERY = 2.0  # seconds between two writes


class StatusFile:
    """`status.json` of a run folder."""

    def __init__(self, path: Path, launcher: int):
        self._path = path
        self._launcher = launcher
        self._due = 0.0
        self._cpu: dict[str, tuple[float, float]] = {}

    def write(self, workers: Sequence[SupervisedNode]) -> None:
        """Writes how `workers` are, if it is time; a reader never sees half of it."""
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + _EVERY
        nodes = {worker.name: self._one(worker, now) for worker in workers}
        state = {"time": time.time(), "launcher": self._launcher, "nodes": nodes}
        write_json(self._path, state, durable=False)

    def _one(self, worker: SupervisedNode, now: float) -> dict[str, Any]:
        heartbeat = worker.heartbeat
        usage = worker.usage() if worker.alive else None
        found: dict[str, Any] = {
            "status": "host lost" if worker.away else _STATUS.get(heartbeat.status, "ended"),
            "host": worker.host,
            "pid": getattr(worker, "pid", self._launcher) if worker.alive else None,
            "life": heartbeat.life,
            "restarts": len(worker.exit.causes),
        }
        if usage is not None:
            then, cpu = self._cpu.get(worker.name, (worker.started, 0.0))
            self._cpu[worker.name] = now, usage.cpu
            found["cores"] = round(max(0.0, usage.cpu - cpu) / max(now - then, 1e-3), 2)
            found["resident_mb"] = round(usage.resident / 1e6, 1)
            found["shared_mb"] = round(usage.shared / 1e6, 1)
            stuck = heartbeat.at_work()
            found["seconds_since_progress"] = None if stuck is None else round(stuck, 1)
        return found


def read(run: str) -> dict[str, Any]:
    """What is written in a run's folder.

    Raises:
      ConfigError: it is no run's folder, or its program does not run.
    """
    path = Path(run) / "status.json"
    if not path.exists():
        raise ConfigError(f"{run}: no status.json there; name the folder of a run of several nodes")
    state = json.loads(path.read_text())
    if not Path(f"/proc/{state['launcher']}").exists():
        raise ConfigError(f"{run}: its program, process {state['launcher']}, has ended")
    return state


def status(arguments: list[str]) -> int:
    """Prints a table of a running program's nodes.

    Args:
      arguments: the command, and the run's folder.

    Returns:
      The exit status.

    Raises:
      ConfigError: see `read`.
    """
    if len(arguments) != 2:
        raise ConfigError("status: name one run's folder, as in `distrl status runs/NAME`")
    state = read(arguments[1])
    hosts = any(node["host"] for node in state["nodes"].values())
    where = f"{'host':<12} " if hosts else ""
    head = f"{'node':<14} {where}{'pid':>8} {'state':<11} {'life':>4}"
    print(f"{head} {'cores':>6} {'MB':>8} {'shared':>8}")
    for name, node in state["nodes"].items():
        pid = node["pid"] or "-"
        where = f"{node['host']:<12} " if hosts else ""
        line = f"{name:<14} {where}{pid:>8} {node['status']:<11} {node['life']:>4}"
        if "cores" in node:
            line += f" {node['cores']:>6.2f} {node['resident_mb']:>8.1f} {node['shared_mb']:>8.1f}"
            stuck = node["seconds_since_progress"]
            if stuck is not None and stuck > 2:
                line += f"  no progress for {stuck:.0f} s"
        print(line)
    print(f"written {time.time() - state['time']:.0f} s ago")
    return 0
