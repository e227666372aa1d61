"""The interface for custom samplers, used instead of `uniform` or `prioritized` sampling."""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from distrl.errors import ConfigError, SpecError
from distrl.types import Trajectory


class TableView:
    """A sampler's view of a table while it chooses; the oldest unroll has index 0.

    Attributes:
      size: number of unrolls in the table, at least 1.
    """

    def __init__(
        self,
        oldest: int,
        size: int,
        max_size: int,
        priorities: npt.NDArray[Any] | None,
        read: Callable[[npt.NDArray[Any]], Trajectory],
    ):
        """Args:
        oldest: key of the oldest unroll.
        size: number of unrolls in the table.
        max_size: the table's capacity.
        priorities: float64 `[max_size]`, indexed by key modulo `max_size`; None: it has none.
        read: returns copies of the unrolls at indices, int64 `[n]`: keys modulo `max_size`.
        """
        self._read = read
        self.size = size
        self._oldest = oldest
        self._max_size = max_size
        self._priorities = priorities

    @property
    def keys(self) -> npt.NDArray[Any]:
        """Keys of the unrolls in insertion order: int64 `[size]`, consecutive."""
        return np.arange(self._oldest, self._oldest + self.size)

    @property
    def ages(self) -> npt.NDArray[Any]:
        """Number of unrolls inserted after each one: int64 `[size]`, from `size - 1` to 0."""
        return np.arange(self.size - 1, -1, -1)

    @property
    def priorities(self) -> npt.NDArray[Any]:
        """Float64 `[size]`. Raises ConfigError if the table is not `prioritized`: it has none."""
        if self._priorities is None:
            raise ConfigError(
                "replay.sampler reads priorities, which a uniform table does not have; use "
                "replay.table=prioritized"
            )
        return self._priorities[self.keys % self._max_size]

    def unrolls(self, indices: npt.ArrayLike) -> Trajectory:
        """Returns copies of unrolls, `[T + 1, n, ...]`, with `probability` 1.

        The table waits for it: copy few, and keep what follows from them by key.

        Args:
          indices: integers `[n]` from 0 (the oldest) to `size - 1`.
        """
        keys = self._oldest + np.asarray(indices, np.int64)
        return self._read(keys % self._max_size)


class Sampler(Protocol):
    """A custom sampler. Must be picklable for programs of several processes."""

    def choose(
        self, rng: np.random.Generator, count: int, view: TableView
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Chooses unrolls. Called with the table's lock held, so nothing is inserted meanwhile.

        Args:
          rng: the source of all randomness: its state is saved with the table's.
          count: number of unrolls to choose; one may be chosen more than once.
          view: the table's contents; valid during this call only.

        Returns:
          Indices, integers `[count]` from 0 (the oldest) to `size - 1`, and the probabilities
          `[count]` with which they were chosen, for `Trajectory.probability`.
        """


def checked_choice(
    sampler: Sampler, rng: np.random.Generator, count: int, view: TableView
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Returns the sampler's choice as int64 and float32 `[count]`.

    Raises:
      SpecError: the choice breaks the contract of `Sampler.choose`.
    """
    choice = sampler.choose(rng, count, view)
    name = f"replay.sampler {type(sampler).__name__}.choose"
    try:
        indices, probability = map(np.asarray, choice)
    except (TypeError, ValueError):
        got = " ".join(repr(choice).split())
        raise SpecError(
            f"{name}: must return indices and probabilities, each [{count}]; got {got:.80}"
        ) from None
    for what, array in (("indices", indices), ("probabilities", probability)):
        if array.shape != (count,):
            raise SpecError(f"{name}: {what} must have shape [{count}], got {list(array.shape)}")
    if indices.dtype.kind not in "iu" or not ((indices >= 0) & (indices < view.size)).all():
        raise SpecError(
            f"{name}: indices must be integers from 0 to {view.size - 1}, got {indices.dtype} "
            f"from {indices.min()} to {indices.max()}"
        )
    if not ((probability > 0) & (probability <= 1)).all():
        raise SpecError(
            f"{name}: probabilities must be above 0 and at most 1, got {probability.min()} to "
            f"{probability.max()}"
        )
    return indices.astype(np.int64), probability.astype(np.float32)
