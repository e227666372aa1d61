"""The progress of other nodes that a wait depends on, from their heartbeats."""

import math
import time
from collections.abc import Callable

from distrl.programs.build import print_line
from distrl.replay.config import ReplayConfig
from distrl.runtime.heartbeat import DOWN, GONE, LOST, UP, Heartbeat, current_heartbeat
from distrl.runtime.patience import Patience
from distrl.task import Task


def patience(limit: float, *groups: str, task: Task | None = None) -> float:
    """Returns the limit of a wait for nodes of some groups; a plain one without our launcher.

    Args:
      limit: seconds without progress of any of these nodes.
      groups: their groups, those who begin the work first.
      task: for the learner's wait: the task whose first batch is estimated.
    """
    table = current_heartbeat().table
    if table is None:
        return limit
    nodes = {name: row for label in groups for name, row in table.group(label).items()}
    return Patience(limit, NodeProgress(nodes, task), print_line)


def gone_nodes(group: str) -> Callable[[], frozenset[int]]:
    """Returns a function that gives the indices of a group's nodes that have ended for now.

    These are not being restarted: they were scaled down, or their host is lost and not back yet.
    Without our launcher none are known.
    """
    table = current_heartbeat().table
    if table is None:
        return frozenset
    rows = {int(name.rpartition("/")[2]): row for name, row in table.group(group).items()}
    return lambda: frozenset(index for index, row in rows.items() if row.status in (GONE, LOST))


def steps_of(group: str) -> Callable[[], int]:
    """Returns a function that gives the environment steps of a group in this program.

    For nodes on other hosts, only the steps of lives that have ended are known here; without our
    launcher, none are.
    """
    table = current_heartbeat().table
    rows = [] if table is None else list(table.group(group).values())
    return lambda: sum(row.acted for row in rows)


class NodeProgress:
    """The progress of some nodes, from their heartbeats; see `distrl.runtime.patience.Workers`.

    Args:
      nodes: their heartbeats, by name.
      task: the task whose first batch is estimated; None: none is.
      clock: the monotonic clock.
    """

    def __init__(
        self,
        nodes: dict[str, Heartbeat],
        task: Task | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._nodes = nodes
        self._clock = clock
        self._first = _FirstBatch(task, self.acted()) if task is not None else None
        self._before = self._clock(), self.acted()  # when the first step was seen, and all steps

    def acted(self) -> int:
        """Returns the environment steps that they have taken in this program."""
        return sum(row.acted for row in self._nodes.values())

    def signs(self) -> object:
        """See `Workers.signs`."""
        acted = self.acted()
        if acted and not self._before[1]:
            self._before = self._clock(), acted
        return acted, tuple((row.status, row.life) for row in self._nodes.values())

    def busy(self) -> bool:
        """See `Workers.busy`. For a node on another host it is only known whether it runs."""
        return any(
            row.status == DOWN
            or (row.status == UP and (row.at_work() is not None or not row.activity_known))
            for row in self._nodes.values()
        )

    def present(self) -> bool:
        """See `Workers.present`."""
        return any(row.status in (UP, DOWN) for row in self._nodes.values())

    def describe(self) -> str:
        """See `Workers.describe`."""
        up = [row for row in self._nodes.values() if row.status == UP]
        working = sum(row.at_work() is not None for row in up)
        down = sum(row.status == DOWN for row in self._nodes.values())
        state = f"of {_names(self._nodes)}, {working} at work, {len(up) - working} waiting"
        lost = sum(row.status == LOST for row in self._nodes.values())
        text = f"{state}, {down} being restarted" if down else state
        text = f"{text}, {lost} lost with their hosts" if lost else text
        acted = self.acted()
        if not acted:
            return text
        since, before = self._before
        seconds = max(self._clock() - since, 1e-9)
        rate = (acted - before) / seconds
        text = f"{text}; {acted:,} environment steps taken, {rate:.3g} per second"
        first = self._first.describe(acted, rate) if self._first is not None else ""
        return f"{first}; {text}" if first else text


class _FirstBatch:
    """The environment steps that a task's first batch needs.

    Args:
      task: the task.
      before: steps that were taken before; if there are any, nothing is estimated.
    """

    def __init__(self, task: Task, before: int) -> None:
        self._streams = task.actors.num_streams
        self._replay = task.replay
        self._unrolls = unrolls_of_first_batch(task.replay, task.learner.batch_size)
        self._known = before == 0

    def describe(self, acted: int, rate: float) -> str:
        """Returns when the batch is expected, or "".

        Args:
          acted: steps taken so far.
          rate: steps per second.
        """
        replay, streams = self._replay, self._streams
        period = replay.period or replay.unroll_length
        rounds = math.ceil(self._unrolls / streams)
        needed = streams * (replay.unroll_length + (rounds - 1) * period)
        if not self._known or acted >= needed or rate <= 0:
            return ""
        done = max(0, (acted // streams - replay.unroll_length) // period + 1) * streams
        return (
            f"first batch in about {_duration((needed - acted) / rate)}: {done} of "
            f"{self._unrolls} unrolls"
        )


def unrolls_of_first_batch(replay: ReplayConfig, batch_size: int) -> int:
    """Returns the inserts after which a table gives its first batch."""
    if replay.table == "queue":
        return batch_size
    limits = replay.limits(batch_size)
    by_ratio = (limits.min_diff + batch_size) / limits.samples_per_insert
    return max(limits.min_size_to_sample, math.ceil(by_ratio) if math.isfinite(by_ratio) else 0)


def _names(nodes: dict[str, Heartbeat]) -> str:
    names = list(nodes)
    return names[0] if len(names) == 1 else f"{len(names)} nodes ({names[0]} to {names[-1]})"


def _duration(seconds: float) -> str:
    for size, unit in ((86400.0, "days"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
