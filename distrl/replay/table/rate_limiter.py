"""The rate limiter: when a table admits inserts and samples, as Reverb's `RateLimiter`."""

import math
from collections.abc import MutableSequence

import numpy as np

from distrl.replay.config import RateLimits

_INSERTS, _SAMPLES, _DELETES = range(3)


class RateLimiter:
    """Counts inserts, samples and deletes; not thread safe.

    As in `reverb/cc/rate_limiter.cc`: a sample needs `min_size_to_sample` unrolls in the table
    and `inserts * samples_per_insert - samples >= min_diff` after it. An insert is free while the
    table is smaller than that; beyond, the same quantity must be `<= max_diff` after it.
    """

    def __init__(self, limits: RateLimits, counts: MutableSequence[int] | memoryview | None = None):
        """Args:
        limits: the limits, in unrolls.
        counts: storage for the three counts; None: a new list of zeros.
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
        """Number of unrolls in the table."""
        return self.inserts - self.deletes

    @property
    def error(self) -> float:
        """`inserts * samples_per_insert - samples`, which the limits bound."""
        return self.inserts * self.limits.samples_per_insert - self.samples

    def rebased(self, limits: RateLimits, before: RateLimits, pending: int = 0) -> RateLimits:
        """Returns new limits with the bounds shifted so that the table continues from its counts.

        Counts accumulated under another ratio mean nothing under the new one: the error could lie
        far outside of the bounds, and one side would block until the other has made up for the
        whole past. So the bounds move, not the counts. The error keeps its distance from what it is
        on the ratio (the samples that the table owes or is ahead), clipped to the new bounds. A
        table smaller than `min_size_to_sample` starts like a new one: its error will be on the
        ratio when it reaches that size.

        Args:
          limits: the limits of an empty table, from `ReplayConfig.limits`.
          before: the same for the settings until now.
          pending: see `can_insert`.
        """
        if limits == before:
            return self.limits
        if not math.isfinite(limits.min_diff):
            return limits
        inserts, size = self.inserts + pending, self.size + pending
        error, owed = inserts * limits.samples_per_insert - self.samples, 0.0
        start = _on_ratio(limits)
        if size < limits.min_size_to_sample:
            error += (limits.min_size_to_sample - size) * limits.samples_per_insert
        elif size >= before.min_size_to_sample and math.isfinite(before.min_diff):
            moved = self.limits.min_diff - before.min_diff
            owed = inserts * before.samples_per_insert - self.samples - moved - _on_ratio(before)
            owed = min(max(owed, limits.min_diff - start), limits.max_diff - start)
        return _moved(limits, error - owed - start)

    def shifted(self, count: int, pending: int = 0) -> RateLimits:
        """Returns the limits after `count` inserts that are exempt: the bounds move with them.

        Inserts that fill a table up to `min_size_to_sample` are free anyway.

        Args:
          count: number of exempt inserts.
          pending: see `can_insert`.
        """
        limits, size = self.limits, self.size + pending
        start = max(0, limits.min_size_to_sample - size)
        return _moved(limits, max(0, count - start) * limits.samples_per_insert)

    def refilled(self, limits: RateLimits, pending: int = 0) -> RateLimits:
        """Returns the limits after unrolls were removed before they were replaced.

        A table that is smaller than `min_size_to_sample` again is filled like a new one: its bounds
        move, so that the error will be where an empty table's is when it reaches that size.

        Args:
          limits: the limits of an empty table, from `ReplayConfig.limits`.
          pending: see `can_insert`.
        """
        missing = limits.min_size_to_sample - self.size - pending
        if missing <= 0 or not math.isfinite(limits.min_diff):
            return self.limits
        inserts = self.inserts + pending + missing - limits.min_size_to_sample
        return _moved(limits, inserts * limits.samples_per_insert - self.samples)

    def resume(self, limits: RateLimits, moved: float) -> None:
        """Sets the limits of a table that was loaded, with its counts.

        The error is clipped to the bounds, as by `rebased`: those of the saved one may be wider.

        Args:
          limits: the limits of an empty table, from `ReplayConfig.limits`.
          moved: how far the bounds of the saved one were from these.
        """
        self.limits = bounds = _moved(limits, moved)
        clipped = min(max(self.error, bounds.min_diff), bounds.max_diff)
        self.limits = _moved(bounds, self.error - clipped)
        self.limits = self.refilled(limits)

    def can_insert(self, count: int, max_size: int, pending: int = 0) -> int:
        """Returns how many of `count` consecutive inserts are admitted now.

        Args:
          count: number of inserts wanted.
          max_size: capacity of the table: an insert beyond it deletes one.
          pending: inserts that were admitted and are not counted yet.
        """
        if self.admits(count, pending):
            return count
        limits = self.limits
        inserts, size = self.inserts + pending, self.size + pending
        more = np.arange(1, count + 1)
        sizes = np.minimum(size + more, max_size + 1)  # before the excess is deleted
        error = (inserts + more) * limits.samples_per_insert - self.samples
        admitted = (sizes <= limits.min_size_to_sample) | (error <= limits.max_diff)
        return int(admitted.argmin())

    def admits(self, count: int, pending: int = 0) -> bool:
        """Returns whether `can_insert` admits all. Once one is refused, so are those after it."""
        limits, samples = self.limits, self.samples
        inserts = self.inserts + pending + count
        return (
            inserts - self.deletes <= limits.min_size_to_sample
            or inserts * limits.samples_per_insert - samples <= limits.max_diff
        )

    def can_sample(self, count: int) -> bool:
        """Returns whether `count` samples are admitted now."""
        limits = self.limits
        return self.size >= limits.min_size_to_sample and self.error - count >= limits.min_diff


def _moved(limits: RateLimits, by: float) -> RateLimits:
    return limits._replace(min_diff=limits.min_diff + by, max_diff=limits.max_diff + by)


def _on_ratio(limits: RateLimits) -> float:
    """Returns the error of an empty table when it may first be sampled; bounds may be infinite."""
    return limits.samples_per_insert * limits.min_size_to_sample
