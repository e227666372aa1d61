"""The status of a task in progress, in a file that other processes read."""

import collections
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from distrl.goal import Goal
from distrl.metrics.bottleneck import BottleneckVerdict, find_bottleneck
from distrl.metrics.node_times import Mark, NodeTimes, columns
from distrl.metrics.progress_line import FILE_NAME
from distrl.metrics.reported_errors import ReportedErrors
from distrl.runtime.files import write_json
from distrl.runtime.host_resources import idle_seconds
from distrl.shared_memory.process import boot_id

_WRITE_S = 1.0  # between two writes of the file
_WINDOW_S = 10.0  # the least time that rates and shares are taken over
_RATES = ("env_steps", "learner_steps", "episodes", "trained_steps")


class RunStatus:
    """Rates, times of nodes and the bottleneck of a task, in `progress.json`.

    Attributes:
      times: what the nodes spend their time on.
    """

    def __init__(
        self,
        goal: Goal,
        folder: Path | None,
        printer: Callable[[str], None],
        coupled: bool = True,
        table_max: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        """Args:
        goal: the task's goal.
        folder: the task's folder; None: nothing is written.
        printer: takes a line if the file cannot be written.
        coupled: see `find_bottleneck`.
        table_max: unrolls that the table has room for.
        clock: monotonic, in seconds.
        """
        self.times = NodeTimes()
        self._goal, self._coupled, self._clock = goal, coupled, clock
        self._path = None if folder is None else folder / FILE_NAME
        self._table_max = table_max
        self._row = self.times.mark()  # at the last row
        self._window: collections.deque[tuple[float, dict[str, float], Mark]] = collections.deque()
        self._next_write = 0.0
        self._idle: collections.deque[tuple[float, float]] = collections.deque()
        self._idle_cores: float | None = None
        self._cores = os.sched_getaffinity(0)  # before this process's threads are kept to some
        self._errors = ReportedErrors(printer, self._path, "the status is not current")

    def columns(self) -> dict[str, float | None]:
        """Returns a row's columns, about the time since the row before."""
        return columns(self.times.groups(self._row))

    def row_written(self) -> None:
        """Begins the time of the next row."""
        self._row = self.times.mark()

    def verdict(self) -> BottleneckVerdict | None:
        """Returns the bottleneck of the whole run; None while it is not known."""
        groups = self.times.groups(self.times.began)
        return find_bottleneck(groups, self._coupled, self._idle_cores)

    @property
    def is_due(self) -> bool:
        """Whether the file is to be written."""
        return self._path is not None and self._clock() >= self._next_write

    def write(self, metrics: Mapping[str, Any], ended: bool = False) -> None:
        """Writes the file. Args: metrics: `Monitor.snapshot`. ended: it is the last time."""
        if self._path is None:
            return
        now = self._clock()
        self._next_write = now + _WRITE_S
        then, before, mark = self._since(now, metrics)
        seconds = max(now - then, 1e-9)
        rates = {name: (metrics[name] - before[name]) / seconds for name in _RATES}
        if ended:
            mark = self.times.began
        self._look_at_cores(now)
        verdict = find_bottleneck(self.times.groups(mark), self._coupled, self._idle_cores)
        status = {
            "time": time.time(),
            "monotonic": now,
            "boot": boot_id(),  # this clock counts from then on
            "metrics": dict(metrics),
            "rates": {name: round(rate, 2) for name, rate in rates.items()},
            "table_max": self._table_max,
            "progress": progress(self._goal, metrics, rates),
            "nodes": {
                node: {state: round(share, 4) for state, share in shares.items()}
                for node, shares in self.times.nodes(mark).items()
            },
            "bottleneck": None if verdict is None else verdict.sentence,
            "gains": {} if verdict is None else verdict.gains,
        }
        with self._errors.reporting():
            write_json(self._path, status, durable=False)
            self._errors.worked()

    def _look_at_cores(self, now: float) -> None:
        """Records how many usable cores have been idle, on average over the window."""
        idle = idle_seconds(self._cores)
        if idle is None:
            return
        cores = self._idle
        cores.append((now, idle))
        while len(cores) > 2 and cores[1][0] <= now - _WINDOW_S:
            cores.popleft()
        then, before = cores[0]
        if now > then:
            self._idle_cores = (idle - before) / (now - then)

    def _since(
        self, now: float, metrics: Mapping[str, Any]
    ) -> tuple[float, dict[str, float], Mark]:
        """Records this moment. Returns one about `_WINDOW_S` ago, or the first."""
        window = self._window
        window.append((now, {name: metrics[name] for name in _RATES}, self.times.mark()))
        while len(window) > 2 and window[1][0] <= now - _WINDOW_S:
            window.popleft()
        return window[0]


def progress(
    goal: Goal, metrics: Mapping[str, Any], rates: Mapping[str, float]
) -> list[dict[str, Any]]:
    """Returns how far a task has come, for each part of its goal.

    Args:
      goal: with "auto" already resolved.
      metrics: `Monitor.snapshot`.
      rates: the rates of its counts, per second.

    Returns:
      For each part "name", "value" (None: not known yet), "wanted", and for budgets "seconds_left"
      at the present rate (None: it does not rise). A run ends at its first budget that is spent.
    """
    parts = []
    for name, figure in (
        ("mean_return", "mean_return"),
        ("success_rate", "success_rate"),
        ("evaluation_return", "evaluation_return"),
    ):
        wanted = getattr(goal, name)
        if isinstance(wanted, (int, float)):
            parts.append({"name": name, "value": metrics.get(figure), "wanted": wanted})
    for name, figure, rate in (
        ("max_env_steps", "env_steps", rates["env_steps"]),
        ("max_episodes", "episodes", rates["episodes"]),
        ("max_trained_steps", "trained_steps", rates["trained_steps"]),
        ("max_learner_steps", "learner_steps", rates["learner_steps"]),
        ("max_seconds", "seconds_learning", 1.0),
    ):
        wanted = getattr(goal, name)
        if wanted is None:
            continue
        value = metrics.get(figure) or 0
        left = max(0.0, wanted - value) / rate if rate > 0 else None
        left = None if left is None else round(left, 1)
        parts.append({"name": name, "value": value, "wanted": wanted, "seconds_left": left})
    return parts
