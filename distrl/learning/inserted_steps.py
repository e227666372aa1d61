"""Estimates how many environment steps a table has received, from its count of unrolls."""

import numpy as np
import numpy.typing as npt

# The newest keys are remembered in 2**_SLOT_BITS slots, by hash, which take 8 MiB: a table seldom
# holds more unrolls.
_SLOT_BITS = 20
_MIX = np.uint64(0x9E3779B97F4A7C15)  # 2**64 over the golden ratio: spreads consecutive keys evenly


class InsertedSteps:
    """Counts the environment steps in the unrolls that a table has received.

    The table counts unrolls, whose rows from an episode's end to the next one's start are no steps.
    The share of steps is taken from the unrolls learned from so far: exact for a queue, an estimate
    for a table that is sampled from. Priorities would bias it, as an unroll without a step is
    sampled once at most: from such a table an unroll counts only when it is first learned from.
    """

    def __init__(self) -> None:
        self._seen: npt.NDArray[np.uint64] | None = None  # keys + 1
        self.restart(0)

    def restart(self, total: int) -> None:
        """Continues from a total."""
        self._before = self.total = total
        self._inserted = self._learned = self._real = 0

    def shown(
        self, keys: npt.NDArray[np.uint64], real: npt.NDArray[np.bool_], by_priority: bool
    ) -> tuple[int, int]:
        """Returns the rows of a batch that count for the share, and how many of them are steps.

        Args:
          keys: the unrolls' keys, uint64 `[B]`.
          real: bool `[T, B]`, which rows are environment steps.
          by_priority: whether the table samples by priority.
        """
        if by_priority:
            if self._seen is None:
                self._seen = np.zeros(2**_SLOT_BITS, np.uint64)
            slots, marks = keys * _MIX >> np.uint64(64 - _SLOT_BITS), keys + np.uint64(1)
            real = real[:, self._seen[slots] != marks]
            self._seen[slots] = marks
        return real.size, int(np.count_nonzero(real))

    def add(self, inserted: int, learned: int, real: int) -> None:
        """Adds an update's numbers.

        Args:
          inserted: rows that the table has received since the last update.
          learned: rows that count for the share, see `shown`, of all the learner's processes.
          real: how many of these are environment steps.
        """
        self._inserted += inserted
        self._learned += learned
        self._real += real
        total = self._before + round(self._inserted * self._real / max(1, self._learned))
        self.total = max(self.total, total)
