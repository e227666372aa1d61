"""How a table stands: its counts, its limits, and who waits for it."""

import math
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


class Contents(NamedTuple):
    """What a table holds."""

    nbytes: int  # of the unrolls
    capacity_bytes: int  # of the memory that it has for them
    # Of the priorities: counts `[10]` and edges `[11]`, as np.histogram has them; None: all alike.
    priorities: tuple[tuple[int, ...], tuple[float, ...]] | None

    @classmethod
    def of(cls, size: int, unroll_bytes: int, slots: int, priorities: np.ndarray | None):
        """Args: size: unrolls. slots: for how many there is memory."""
        histogram = None
        if priorities is not None and len(priorities):
            counts, edges = np.histogram(priorities, bins=10)
            histogram = tuple(counts.tolist()), tuple(edges.tolist())
        return cls(size * unroll_bytes, slots * unroll_bytes, histogram)

    def __str__(self) -> str:
        text = f"{self.nbytes / 1e6:.1f} MB of {self.capacity_bytes / 1e6:.1f} MB"
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
