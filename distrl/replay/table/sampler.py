"""Samplers of a user's own, in the place of `uniform` and `prioritized`."""

from typing import Protocol

import numpy as np

from distrl.errors import SpecError
from distrl.replay.table.rate_limiter import RateLimiter


class TableView:
    """What a sampler may know of a table while it chooses; the oldest unroll is place 0.

    Attributes:
      size: unrolls in the table, 1 or more.
    """

    def __init__(self, counts: RateLimiter, priorities: np.ndarray):
        """Args: priorities: float64 `[max_size]`, by key modulo `max_size`."""
        self.size = counts.size
        self._oldest = counts.deletes
        self._priorities = priorities

    @property
    def keys(self) -> np.ndarray:
        """Numbers of the unrolls in the order of inserts: int64 `[size]`, rising by 1."""
        return np.arange(self._oldest, self._oldest + self.size)

    @property
    def ages(self) -> np.ndarray:
        """How many unrolls came after each: int64 `[size]`, from `size - 1` to 0."""
        return np.arange(self.size - 1, -1, -1)

    @property
    def priorities(self) -> np.ndarray:
        """Float64 `[size]`: of `prioritized` tables; those of others mean nothing."""
        return self._priorities[self.keys % len(self._priorities)]


class Sampler(Protocol):
    """How a table of a user's own chooses. Picklable, for programs of several processes."""

    def choose(
        self, rng: np.random.Generator, count: int, view: TableView
    ) -> tuple[np.ndarray, np.ndarray]:
        """Chooses unrolls; called with the table's lock held, so nobody inserts meanwhile.

        Args:
          rng: what is random in it comes from here.
          count: of unrolls; one may be chosen more than once.
          view: of the table; of no use afterwards.

        Returns:
          places, integers `[count]` from 0 (the oldest) to `size - 1`, and probabilities `[count]`,
          with which each place was chosen: `Trajectory.probability`.
        """


def checked(
    sampler: Sampler, rng: np.random.Generator, count: int, view: TableView
) -> tuple[np.ndarray, np.ndarray]:
    """The sampler's choice, int64 and float32 `[count]`.

    Raises:
      SpecError: it is not what `Sampler.choose` says.
    """
    places, probability = map(np.asarray, sampler.choose(rng, count, view))
    name = f"replay.sampler {type(sampler).__name__}.choose"
    for what, array in (("places", places), ("probabilities", probability)):
        if array.shape != (count,):
            raise SpecError(f"{name}: {what} must have shape [{count}], got {list(array.shape)}")
    if places.dtype.kind not in "iu" or not ((places >= 0) & (places < view.size)).all():
        raise SpecError(
            f"{name}: places must be integers from 0 to {view.size - 1}, got {places.dtype} "
            f"from {places.min()} to {places.max()}"
        )
    if not ((probability > 0) & (probability <= 1)).all():
        raise SpecError(
            f"{name}: probabilities must be above 0 and at most 1, got {probability.min()} to "
            f"{probability.max()}"
        )
    return places.astype(np.int64), probability.astype(np.float32)
