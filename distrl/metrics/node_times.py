"""Adds up what the nodes of a program spend their time on, from their reports."""

from collections.abc import Mapping, Sequence
from typing import Any

from distrl.metrics.bottleneck import (
    ACTOR_NODES,
    INFERENCER_NODES,
    LEARNER_NODES,
    SINGLE_PROCESS,
    Group,
)
from distrl.runtime.time_account import STATES

Mark = dict[str, "_Sums"]
"""All nodes' sums at one moment."""
_Sums = dict[str, float]  # a node's nanoseconds by state, and its other sums
_BATCHES = ("requests", "batches", "rows", "squares", "seconds", "products")
_OWNERS = {
    **dict.fromkeys(STATES[:6], ACTOR_NODES),  # up to parameter_wait
    **dict.fromkeys(STATES[6:11], LEARNER_NODES),  # up to publish
}


class NodeTimes:
    """Adds up the times that nodes report, over all lives of each."""

    def __init__(self) -> None:
        self._now: Mark = {}
        self._earlier: Mark = {}  # sums of the lives before the current one
        self._lives: dict[str, int] = {}
        self._began: Mark | None = None

    def add(self, node: str, life: int, report: Mapping[str, Any]) -> None:
        """Takes a node's report.

        Args:
          node: its name.
          life: its life.
          report: with "time", nanoseconds by state since the life began, and perhaps "batches",
            from `InferenceServer.times`.
        """
        if self._lives.get(node) != life:
            self._lives[node] = life
            self._earlier[node] = self._now.get(node, {})
        sums: _Sums = dict(report["time"])
        sums.update(zip(_BATCHES, report.get("batches", ())))
        before = self._earlier[node]
        self._now[node] = {
            name: sums.get(name, 0) + before.get(name, 0) for name in {*sums, *before}
        }
        if self._began is not None:
            self._began.setdefault(node, self._now[node])

    def begin(self) -> None:
        """When first called, forgets the time before, in which programs start and compile.

        A node that has been waiting for this moment includes the wait in its next report, which
        still belongs to the time before.
        """
        if self._began is None:
            self._began = {}

    def _later(self, mark: Mark) -> Mark:
        """Returns the later of a mark and of `began`."""
        began = self._began or {}
        return {
            node: max(mark.get(node, {}), began.get(node, {}), key=lambda sums: sum(sums.values()))
            for node in {*mark, *began}
        }

    def mark(self) -> Mark:
        """Returns the sums up to now, which later calls of `add` leave unchanged."""
        return dict(self._now)

    @property
    def began(self) -> Mark:
        """The sums at each node's first report after `begin`; without it, those of now."""
        return self.mark() if self._began is None else self._began

    def nodes(self, since: Mark) -> dict[str, dict[str, float]]:
        """Returns the share of time by state of each node that has reported since."""
        return {
            node: {name: spent / sum(times.values()) for name, spent in times.items() if spent}
            for node, times in self._times(self._later(since)).items()
        }

    def _times(self, since: Mark) -> Mark:
        """Returns the nanoseconds by state of each node that has reported since."""
        times = {}
        for node, sums in sorted(self._now.items()):
            before = since.get(node, {})
            of_node = {name: sums.get(name, 0) - before.get(name, 0) for name in STATES}
            if sum(of_node.values()) > 0:
                times[node] = of_node
        return times

    def groups(self, since: Mark) -> dict[str, Group]:
        """Returns the means of groups, over the nodes that have reported since."""
        members: dict[str, list[str]] = {}
        since = self._later(since)
        times, shares = self._times(since), self.nodes(since)
        for node in shares:
            members.setdefault(node.partition("/")[0], []).append(node)
        return {
            name: Group(
                len(nodes),
                {
                    state: sum(shares[node].get(state, 0.0) for node in nodes) / len(nodes)
                    for state in STATES
                },
                *self._batches(nodes, since),
                seconds=sum(sum(times[node].values()) for node in nodes) / len(nodes) / 1e9,
            )
            for name, nodes in members.items()
        }

    def _batches(self, nodes: Sequence[str], since: Mark) -> tuple[float, float]:
        """Returns mean requests in a batch, and `Group.growth` by least squares."""
        requests, n, rows, squares, seconds, products = (
            sum(self._now[node].get(name, 0) - since.get(node, {}).get(name, 0) for node in nodes)
            for name in _BATCHES
        )
        if n == 0 or seconds <= 0:
            return 1.0, 1.0
        spread = n * squares - rows * rows
        if spread <= 0:  # all batches have the same size
            return max(1.0, requests / n), 1.0
        slope = (n * products - rows * seconds) / spread
        return max(1.0, requests / n), min(1.0, max(0.0, slope * rows / seconds))


def columns(groups: Mapping[str, Group]) -> dict[str, float | None]:
    """Returns a row's columns: each state's mean share, over the nodes that have that state."""
    row: dict[str, float | None] = {}
    for state, owner in _OWNERS.items():
        if state == "inference" and INFERENCER_NODES in groups:
            owner = INFERENCER_NODES
        group = groups.get(SINGLE_PROCESS) or groups.get(owner)
        row[f"time_{state}"] = None if group is None else round(group.share(state), 4)
    return row
