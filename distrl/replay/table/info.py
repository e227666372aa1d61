"""How a table stands: its counts, its limits, and who waits for it."""

import math
import time
from typing import NamedTuple

import numpy as np


class RateLimits(NamedTuple):
    """Bounds on `inserts * samples_per_insert - samples`, as `reverb.rate_limiters` has them."""

    samples_per_insert: float
    min_size_to_sample: int
    min_diff: float
    max_diff: float


class Wait(NamedTuple):
    """Somebody waits for a table."""

    who: str  # a thread's name, or "process 123"
    what: str  # "room" for an insert, or "samples"
    seconds: float  # until now

    def __str__(self) -> str:
        return f"{self.who} waits for {self.what} since {self.seconds:.1f} s"


class Ages(NamedTuple):
    """How old the oldest unroll of a table is, and the one in the middle.

    In inserts: how many unrolls came after it. In seconds, since it was inserted; None: not known.
    """

    oldest: int
    median: int
    oldest_seconds: float | None = None
    median_seconds: float | None = None

    @classmethod
    def of(cls, size: int, inserted: np.ndarray | None = None) -> "Ages | None":
        """Args:
        size: unrolls in the table; None for an empty one.
        inserted: int64 `[size]`, when, in nanoseconds of the monotonic clock, the oldest first.
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
    """What a table holds."""

    nbytes: int  # of the unrolls
    capacity_bytes: int  # of the memory that it has for them
    sampler: str  # "in order", "uniform" or "prioritized, exponent 0.6"
    ages: Ages | None  # None: it is empty
    # Of the priorities: counts `[10]` and edges `[11]`, as np.histogram has them; None: all alike.
    priorities: tuple[tuple[int, ...], tuple[float, ...]] | None = None

    @classmethod
    def of(
        cls,
        unroll_bytes: int,
        slots: int,
        sampler: str,
        inserted: np.ndarray,
        priorities: np.ndarray | None,
    ) -> "Contents":
        """Args:
        unroll_bytes: of one unroll.
        slots: for how many unrolls there is memory.
        sampler: see above.
        inserted: as of `Ages.of`.
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
    """How a table stands. Counted in unrolls."""

    name: str
    size: int
    max_size: int
    inserts: int
    samples: int
    limits: RateLimits | None = None  # None: a queue, which hands out each unroll once
    waits: tuple[Wait, ...] = ()  # empty for Reverb, whose server does not say who waits

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
