"""Information about a table: its counts, limits, contents, and the calls blocked on it."""

import math
import time
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from distrl.replay.config import RateLimits


class Wait(NamedTuple):
    """A call that is blocked on a table."""

    who: str  # a node's or a thread's name, or "process 123"
    what: str  # "room" for an insert, or "samples"
    seconds: float  # duration so far

    def __str__(self) -> str:
        return f"{self.who} has waited for {self.what} for {self.seconds:.1f} s"


class Ages(NamedTuple):
    """The ages of a table's oldest and median unroll.

    In inserts: the number of unrolls inserted after it. In seconds: the time since its insertion;
    None: unknown.
    """

    oldest: int
    median: int
    oldest_seconds: float | None = None
    median_seconds: float | None = None

    @classmethod
    def of(cls, size: int, inserted: npt.NDArray[Any] | None = None) -> "Ages | None":
        """Returns the ages of a table's unrolls; None for an empty table.

        Args:
          size: number of unrolls in the table.
          inserted: int64 `[size]`, insertion times in nanoseconds of the monotonic clock, the
            oldest first; None: unknown.
        """
        if size == 0:
            return None
        middle = size // 2
        ages = cls(size - 1, size - 1 - middle)
        if inserted is None:
            return ages
        seconds = (time.monotonic_ns() - inserted[[0, middle]]) / 1e9
        return ages._replace(oldest_seconds=float(seconds[0]), median_seconds=float(seconds[1]))

    def __str__(self) -> str:
        def text(inserts: int, seconds: float | None) -> str:
            return f"{inserts} inserts" + ("" if seconds is None else f" ({seconds:.1f} s)")

        median = text(self.median, self.median_seconds)
        return f"ages: median {median}, oldest {text(self.oldest, self.oldest_seconds)}"


class Contents(NamedTuple):
    """The contents of a table."""

    nbytes: int  # size of the unrolls
    capacity_bytes: int  # memory allocated for unrolls
    sampler: str  # "in order", "uniform" or "prioritized, exponent 0.6"
    ages: Ages | None  # None: the table is empty
    # Histogram of the priorities: counts `[10]` and edges `[11]`; None: the table has none.
    priorities: tuple[tuple[int, ...], tuple[float, ...]] | None = None

    @classmethod
    def of(
        cls,
        unroll_bytes: int,
        slots: int,
        sampler: str,
        inserted: npt.NDArray[Any],
        priorities: npt.NDArray[Any] | None,
    ) -> "Contents":
        """Summarizes a table.

        Args:
          unroll_bytes: size of one unroll.
          slots: number of unrolls for which memory is allocated.
          sampler: description of the sampler.
          inserted: insertion times, see `Ages.of`.
          priorities: float64 `[size]`, or None.
        """
        histogram = None
        if priorities is not None and len(priorities):
            counts, edges = np.histogram(priorities, bins=10)
            histogram = tuple(counts.tolist()), tuple(edges.tolist())
        size = len(inserted)
        ages = Ages.of(size, inserted)
        return cls(size * unroll_bytes, slots * unroll_bytes, sampler, ages, histogram)

    def __str__(self) -> str:
        text = f"{self.nbytes / 1e6:.1f} MB of {self.capacity_bytes / 1e6:.1f} MB; {self.sampler}"
        if self.ages is not None:
            text += f"; {self.ages}"
        if self.priorities is not None:
            counts, edges = self.priorities
            bins = (f"{low:.3g}: {n}" for low, n in zip(edges, counts, strict=False))
            text += f"; priorities from {', '.join(bins)}; to {edges[-1]:.3g}"
        return text


class TableInfo(NamedTuple):
    """A table's counts and limits, in unrolls."""

    name: str
    size: int
    max_size: int
    inserts: int
    samples: int
    limits: RateLimits | None = None  # None: a queue, which has no rate limits
    waits: tuple[Wait, ...] = ()  # always empty for Reverb, whose server does not report them

    @property
    def error(self) -> float:
        """`inserts * samples_per_insert - samples`, which `limits` bounds."""
        ratio = 1.0 if self.limits is None else self.limits.samples_per_insert
        return self.inserts * ratio - self.samples

    def __str__(self) -> str:
        text = (
            f"table {self.name!r}: size {self.size} of {self.max_size}, "
            f"{self.inserts} inserts, {self.samples} samples"
        )
        limits = self.limits
        if limits is not None:
            text += f"; samples need a size of {limits.min_size_to_sample}"
            if math.isfinite(limits.max_diff):
                text += (
                    f" and {limits.min_diff:g} <= inserts * {limits.samples_per_insert:g} - "
                    f"samples, inserts beyond that size need it to be <= {limits.max_diff:g}; "
                    f"it is {self.error:g}"
                )
        return "; ".join([text, *map(str, self.waits)])
