"""Decides which gradient workers compute for which policy, as the policies' load changes.

The load of a policy is the part of the time that its learner spends in updates rather than waits
for batches. A learner that is always busy holds its policy back; one that mostly waits has workers
to spare.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import NamedTuple

BUSY = 0.8
"""A learner that spends this part of its time in updates may get a worker."""

MARGIN = 0.2
"""A move leaves the giver less busy than the taker was by at least this much, so that the opposite
move is never due next, if the work stays the same."""

CONSECUTIVE = 3
"""Number of consecutive looks that must agree on a move."""

LOOK_S = 2.0
"""Seconds between two looks."""

SILENT_S = 10.0
"""A learner that has not reported for so long waits for a batch: its load is 0."""

START_S = 30.0
"""Seconds after the first report in which all learners may begin, before any worker moves."""


class Load(NamedTuple):
    """The load of a policy."""

    workers: int  # number of its workers
    busy: float  # part of its learner's time that is spent in updates
    most: int  # most workers that its batch splits into
    ended: bool = False  # it has stopped learning, and needs no worker

    def busy_without_one(self) -> float:
        """Returns what `busy` will be with one worker less: an update's work stays the same."""
        if self.ended:
            return 0.0
        return self.busy * self.workers / (self.workers - 1)


class Move(NamedTuple):
    """One worker goes from a policy to another."""

    giver: str
    taker: str


def due_move(loads: Mapping[str, Load]) -> Move | None:
    """Returns the move that the loads call for, if any.

    The busiest policy takes a worker from the one that will be least busy without it. Every policy
    keeps one worker as long as it learns.

    Args: loads: the loads by policy.
    """
    takers = [
        name
        for name, load in loads.items()
        if not load.ended and load.busy >= BUSY and load.workers < load.most
    ]
    givers = [name for name, load in loads.items() if load.workers > (0 if load.ended else 1)]
    if not takers or not givers:
        return None
    taker = max(takers, key=lambda name: loads[name].busy)
    giver = min(givers, key=lambda name: loads[name].busy_without_one())
    if giver == taker or loads[giver].busy_without_one() > loads[taker].busy - MARGIN:
        return None
    return Move(giver, taker)


def reason(move: Move, loads: Mapping[str, Load], worker: int) -> str:
    """Returns the log's line about a move."""
    giver, taker = loads[move.giver], loads[move.taker]
    spare = "has ended"
    if not giver.ended:
        spare = (
            f"with {giver.workers} for {giver.busy:.0%}, an estimated "
            f"{giver.busy_without_one():.0%} with one less"
        )
    return (
        f"gradient_worker/{worker} moves from {move.giver} to {move.taker}: {move.taker} is busy "
        f"with updates for {taker.busy:.0%} of the time with {taker.workers}, {move.giver} {spare}"
    )


@dataclasses.dataclass
class _Policy:
    workers: list[int]
    most: int
    busy: float = 0.0
    reported_at: float | None = None
    ended: bool = False


class Allocator:
    """Moves workers between policies, one at a time, when CONSECUTIVE looks call for it."""

    def __init__(self, workers: Mapping[str, int], most: Mapping[str, int]):
        """Args:
        workers: number of workers of each policy at the start.
        most: most workers that each policy's batch splits into.
        """
        self._policies = {}
        first = 0
        for name, count in workers.items():
            self._policies[name] = _Policy(list(range(first, first + count)), most[name])
            first += count
        self._looked_at = self._began = -math.inf
        self._due: Move | None = None
        self._agreed = 0

    def workers(self, policy: str) -> list[int]:
        """Returns the indices of a policy's workers."""
        return list(self._policies[policy].workers)

    def report(self, policy: str, busy: float, now: float) -> None:
        """Records what part of its time a policy's learner spends in updates."""
        self._policies[policy].busy, self._policies[policy].reported_at = busy, now
        if self._began == -math.inf:
            self._began = now

    def end(self, policy: str) -> None:
        """Records that a policy has reached its goal; once it is silent, it gives up its workers.

        Policies without workers are not known, and ignored.
        """
        if policy in self._policies:
            self._policies[policy].ended = True

    def look(self, now: float) -> str | None:
        """Makes the move that is due, if any, and returns its reason. Call it at any time.

        Args: now: seconds on a clock that never goes back.
        """
        if now - self._looked_at < LOOK_S:
            return None
        begun = all(policy.reported_at is not None for policy in self._policies.values())
        if not begun and now - self._began < START_S:
            return None
        self._looked_at = now
        loads = {name: self._load(policy, now) for name, policy in self._policies.items()}
        move = due_move(loads)
        self._agreed = self._agreed + 1 if move is not None and move == self._due else 1
        self._due = move
        if move is None or self._agreed < CONSECUTIVE:
            return None
        self._due, self._agreed = None, 0
        worker = self._policies[move.giver].workers.pop()
        self._policies[move.taker].workers.append(worker)
        return reason(move, loads, worker)

    def _load(self, policy: _Policy, now: float) -> Load:
        silent = policy.reported_at is None or now - policy.reported_at > SILENT_S
        busy = 0.0 if silent else min(1.0, policy.busy)
        return Load(len(policy.workers), busy, policy.most, policy.ended and silent)
