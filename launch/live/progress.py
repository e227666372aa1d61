"""Reads what a running program reports about itself; see `distrl.metrics.run_status`."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distrl.metrics.progress_line import FILE_NAME
from distrl.runtime.files import TASKS, read_dict
from distrl.shared_memory.process import boot_id

_SHOWN = {"monotonic", "metrics", "rates", "progress", "nodes", "bottleneck"}


def read_progress(run_dir: Path) -> dict[str, dict[str, Any]]:
    """Returns what the file of each task has, by name; "" if there is one. Empty: none yet.

    A file that a crash of the machine has damaged counts as none: the program writes it again.
    """
    alone = _read(run_dir / FILE_NAME)
    if alone is not None:
        return {"": alone}
    folder = run_dir / TASKS
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    by_task = {name: _read(folder / name / FILE_NAME) for name in names}
    return {name: progress for name, progress in by_task.items() if progress is not None}


def _read(path: Path) -> dict[str, Any] | None:
    data = read_dict(path, lambda data: data.keys() >= _SHOWN)
    here = boot_id()
    if data is not None and data.get("boot", here) != here:  # another host's clock
        data["monotonic"] = time.monotonic() - (time.time() - data["time"])
    return data


def shares_of_nodes(progress: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Returns each node's share of time by state, in whichever task's file it is."""
    return {node: shares for task in progress.values() for node, shares in task["nodes"].items()}


def time_text(shares: dict[str, float]) -> str:
    """Returns what a node spends its time on, the most first, without what is less than 1 %."""
    ordered = sorted(shares.items(), key=lambda item: -item[1])
    return "  ".join(
        f"{state.replace('_', ' ')} {100 * share:.0f} %"
        for state, share in ordered
        if share >= 0.01
    )


def duration_text(seconds: float) -> str:
    """Returns "1:02:03"; days are in front."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return (f"{days} d " if days else "") + f"{hours}:{minutes:02}:{rest:02}"
