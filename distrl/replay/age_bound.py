"""A bound on the age of what the learner consumes, for every kind of table.

The age of an unroll is the learner's version, at the moment of the update, minus the oldest version
that chose one of its T actions. It is checked then and not before, since unrolls get older while
they wait: so the bound is exact, wherever they come from.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from distrl.errors import DeadlineExceeded
from distrl.param_versions import LARGEST_LAG, lags
from distrl.replay.buffer import ReplayReader
from distrl.runtime.patience import Deadline, Unless
from distrl.types import TIME_FIELDS, Sample, Trajectory


class AgeBound(ReplayReader):
    """A reader that drops unrolls that are too old, and fills up its batches with others.

    An unroll that is too old stays so: a table with sampling removes it. Importance weights are
    relative to the table's choice, so that those of one batch keep their proportions.

    Attributes:
      dropped: unrolls dropped so far; of a table with sampling, as often as they were drawn.
    """

    def __init__(self, replay: ReplayReader, max_lag: int, version: Callable[[], int]):
        """Args:
        replay: where the batches come from.
        max_lag: the largest age in learner steps.
        version: returns the learner's version.
        """
        self.dropped = 0
        self._replay = replay
        self._max_lag = min(max_lag, LARGEST_LAG)
        self._version = version
        self._size = 0  # unrolls of a batch; 0 before the first batch
        self._held: Sample | None = None  # young unrolls, fewer or more than a batch
        self._cleared = 0  # nothing older than this version is left at the front of the table
        self._youngest = LARGEST_LAG  # age of the youngest that was dropped since a young one came

    @property
    def is_prioritized(self) -> bool:
        return self._replay.is_prioritized

    def update_priorities(self, keys: npt.NDArray[np.uint64], priorities: npt.NDArray[Any]) -> None:
        self._replay.update_priorities(keys, priorities)

    def discard(self, keys: npt.NDArray[np.uint64], oldest: int) -> None:
        self._replay.discard(keys, oldest)

    def sample(self, timeout: float | None) -> Sample:
        """See `ReplayReader`.

        Raises:
          DeadlineExceeded: also if all unrolls that came within the timeout were too old.
        """
        dropped, deadline = self.dropped, Deadline(_plain(timeout))
        self._youngest = LARGEST_LAG
        while True:
            batch = self._take()
            if batch is not None:
                return batch
            self._clear_table()
            if self._draw(timeout):
                dropped, deadline = self.dropped, Deadline(_plain(timeout))
                self._youngest = LARGEST_LAG
            elif deadline.left() <= 0:
                raise DeadlineExceeded(
                    f"learner.max_policy_lag={self._max_lag}: all {self.dropped - dropped} unrolls "
                    f"of the last {deadline.waited():.0f} s were older, the youngest of age "
                    f"{self._youngest}; raise it, or refresh the actors' parameters more often "
                    "(inference.sync_interval)"
                )

    def can_sample(self) -> bool:
        """See `ReplayReader`; draws from the table, as what it holds may be too old."""
        while not self._has_batch():
            self._clear_table()  # first: it may leave too few to sample
            if not self._replay.can_sample():
                return False
            # Without a ratio of samples to inserts there is no end to what can be drawn.
            if not self._draw(None) and not self._replay.has_more():
                return False
        return True

    def has_more(self) -> bool:
        return self._has_batch() or self._replay.has_more()

    def _has_batch(self) -> bool:
        self._drop_old()
        return self._held is not None and len(self._held.key) >= self._size

    def _clear_table(self) -> None:
        """Removes what is at the front of the table and has become too old."""
        oldest = self._version() - self._max_lag
        if oldest > self._cleared:
            self._replay.discard(np.zeros(0, np.uint64), oldest)
            self._cleared = oldest

    def _draw(self, timeout: float | None) -> bool:
        """Adds the young ones of a batch of the table; returns whether there were any."""
        sample = self._replay.sample(timeout)
        self._size = len(sample.key)
        held = 0 if self._held is None else len(self._held.key)
        self._held = sample if self._held is None else _joined(self._held, sample)
        self._drop_old()
        return self._held is not None and len(self._held.key) > held

    def _drop_old(self) -> None:
        held, version = self._held, self._version()
        if held is None:
            return
        lag = lags(version, held.trajectory.version[:-1])
        ages = lag.max(axis=0)
        # Versions that are yet to come were lost with an earlier life of the learner.
        young = (ages <= self._max_lag) & (lag.min(axis=0) >= 0)
        if young.all():
            return
        self.dropped += int(np.count_nonzero(~young))
        self._youngest = min(self._youngest, max(0, int(ages[~young].min())))
        self._replay.discard(held.key[~young], version - self._max_lag)
        self._held = _chosen(held, np.flatnonzero(young)) if young.any() else None

    def _take(self) -> Sample | None:
        """Returns a whole batch of young unrolls, the oldest that are held; None: too few."""
        if not self._has_batch():
            return None
        held, self._held = self._held, None
        assert held is not None
        if len(held.key) == self._size:
            return held
        self._held = _chosen(held, np.arange(self._size, len(held.key)))
        return _chosen(held, np.arange(self._size))


def _chosen(sample: Sample, indices: npt.NDArray[Any]) -> Sample:
    """Returns the unrolls of a sample at indices, int64 `[n]`."""
    return Sample(
        _by_field(sample.trajectory, lambda axis, leaf: np.take(leaf, indices, axis)),
        sample.key[indices],
        sample.inserts,
    )


def _joined(first: Sample, second: Sample) -> Sample:
    """Returns the unrolls of two samples."""
    trajectory = _by_field(
        first.trajectory, lambda axis, *leaves: np.concatenate(leaves, axis), second.trajectory
    )
    return Sample(trajectory, np.concatenate([first.key, second.key]), second.inserts)


def _by_field(trajectory: Trajectory, function: Callable[..., Any], *more: Trajectory) -> Any:
    """Maps a function of the axis of unrolls, and of leaves with it, over trajectories."""
    return Trajectory(
        *(
            jax.tree.map(lambda *leaves, a=int(name in TIME_FIELDS): function(a, *leaves), *parts)
            for name, *parts in zip(trajectory._fields, trajectory, *more, strict=True)
        )
    )


def _plain(limit: float | None) -> float | None:
    """Returns a limit that others' progress does not extend: all that they make may be too old."""
    if isinstance(limit, Unless):
        return Unless(float(limit.limit), limit.ended)
    return None if limit is None else float(limit)
