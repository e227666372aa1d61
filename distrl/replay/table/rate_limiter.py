"""When a table takes inserts and samples: the rules of Reverb's `RateLimiter`."""

import math
from collections.abc import MutableSequence

import numpy as np

from distrl.replay.table.info import RateLimits

_INSERTS, _SAMPLES, _DELETES = range(3)


class RateLimiter:
    """Counts inserts, samples and deletes; not thread safe.

    As in `reverb/cc/rate_limiter.cc`: a sample needs `min_size_to_sample` unrolls in the table
    and `inserts * samples_per_insert - samples >= min_diff` after it; an insert is free until
    there are as many, and from then on needs the same quantity to be `<= max_diff` after it.
    """

    def __init__(self, limits: RateLimits, counts: MutableSequence[int] | memoryview | None = None):
        """Args:
        limits: in unrolls.
        counts: where the three counts are kept; None: here, all 0 at first.
        """
        self.limits = limits
        self._counts: MutableSequence[int] | memoryview = [0, 0, 0] if counts is None else counts

    @property
    def inserts(self) -> int:
        return self._counts[_INSERTS]

    @inserts.setter
    def inserts(self, value: int) -> None:
        self._counts[_INSERTS] = value

    @property
    def samples(self) -> int:
        return self._counts[_SAMPLES]

    @samples.setter
    def samples(self, value: int) -> None:
        self._counts[_SAMPLES] = value

    @property
    def deletes(self) -> int:
        return self._counts[_DELETES]

    @deletes.setter
    def deletes(self, value: int) -> None:
        self._counts[_DELETES] = value

    @property
    def size(self) -> int:
        """Unrolls in the table."""
        return self.inserts - self.deletes

    @property
    def error(self) -> float:
        """`inserts * samples_per_insert - samples`, which the limits bound."""
        return self.inserts * self.limits.samples_per_insert - self.samples

    def carried_on(self, limits: RateLimits, pending: int = 0) -> RateLimits:
        """New limits, with the bounds moved so that the table goes on from where it is.

        What was inserted and sampled under another ratio would mean nothing under the new one: the
        error could lie far outside of the bounds, and one side would wait until the other has made
        up for the whole past. So the bounds move, and not the counts. The error keeps its distance
        from their middle, which is what the table owes or has ahead, in samples; and no more of it
        than the new bounds allow. A table that is smaller than `min_size_to_sample` begins like a
        new one: it will be in their middle when it is filled.

        Args:
          limits: as `ReplayConfig.limits` has them, for an empty table.
          pending: as of `can_insert`.
        """
        old, size = self.limits, self.size + pending
        if limits[:2] == old[:2] and _width(limits) == _width(old):
            return old
        if not math.isfinite(limits.max_diff):
            return limits
        error = (self.inserts + pending) * limits.samples_per_insert - self.samples
        half, ahead = _width(limits) / 2, 0.0
        if size < limits.min_size_to_sample:
            error += (limits.min_size_to_sample - size) * limits.samples_per_insert
        elif size >= old.min_size_to_sample and math.isfinite(old.max_diff):
            before = (self.inserts + pending) * old.samples_per_insert - self.samples
            ahead = min(max(before - (old.min_diff + old.max_diff) / 2, -half), half)
        middle = error - ahead
        return limits._replace(min_diff=middle - half, max_diff=middle + half)

    def moved(self, count: int, pending: int = 0) -> RateLimits:
        """The limits after `count` inserts that nobody has to sample: the bounds move with them.

        Those that fill a table up to `min_size_to_sample` are free as they are.

        Args:
          pending: as of `can_insert`.
        """
        limits, size = self.limits, self.size + pending
        start = max(0, limits.min_size_to_sample - size)
        move = max(0, count - start) * limits.samples_per_insert
        return limits._replace(min_diff=limits.min_diff + move, max_diff=limits.max_diff + move)

    def can_insert(self, count: int, max_size: int, pending: int = 0) -> int:
        """How many of `count` inserts, one after the other, may pass now.

        Args:
          count: of inserts wanted.
          max_size: of the table: an insert beyond it deletes one.
          pending: inserts that passed and are not counted yet.
        """
        limits = self.limits
        inserts, size = self.inserts + pending, self.size + pending
        # Once one may not pass, none after it may: most often the last one tells all.
        if (
            size + count <= limits.min_size_to_sample
            or (inserts + count) * limits.samples_per_insert - self.samples <= limits.max_diff
        ):
            return count
        more = np.arange(1, count + 1)
        sizes = np.minimum(size + more, max_size + 1)  # before what is too much is deleted
        error = (inserts + more) * limits.samples_per_insert - self.samples
        passes = (sizes <= limits.min_size_to_sample) | (error <= limits.max_diff)
        return int(passes.argmin())

    def can_sample(self, count: int) -> bool:
        """True where `count` samples may pass now."""
        limits = self.limits
        return self.size >= limits.min_size_to_sample and self.error - count >= limits.min_diff


def _width(limits: RateLimits) -> float:
    return limits.max_diff - limits.min_diff
