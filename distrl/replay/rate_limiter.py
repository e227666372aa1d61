"""When a table takes inserts and samples: the rules of Reverb's `RateLimiter`."""

import numpy as np

from distrl.replay.buffer import RateLimits


class RateLimiter:
    """Counts inserts, samples and deletes; not thread safe.

    As in `reverb/cc/rate_limiter.cc`: a sample needs `min_size_to_sample` unrolls in the table
    and `inserts * samples_per_insert - samples >= min_diff` after it; an insert is free until
    there are as many, and from then on needs the same quantity to be `<= max_diff` after it.
    """

    def __init__(self, limits: RateLimits):
        self._limits = limits
        self.inserts = 0
        self.samples = 0
        self.deletes = 0

    @property
    def size(self) -> int:
        """Unrolls in the table."""
        return self.inserts - self.deletes

    def can_insert(self, count: int, max_size: int) -> int:
        """How many of `count` inserts, one after the other, may pass now.

        Args:
          count: of inserts wanted.
          max_size: of the table: an insert beyond it deletes one.
        """
        limits = self._limits
        more = np.arange(1, count + 1)
        size = np.minimum(self.size + more, max_size + 1)  # before what is too much is deleted
        error = (self.inserts + more) * limits.samples_per_insert - self.samples
        passes = (size <= limits.min_size_to_sample) | (error <= limits.max_diff)
        return count if passes.all() else int(passes.argmin())

    def can_sample(self, count: int) -> bool:
        """True where `count` samples may pass now."""
        limits = self._limits
        error = self.inserts * limits.samples_per_insert - self.samples - count
        return self.size >= limits.min_size_to_sample and error >= limits.min_diff
