"""The distance of a shared table's rate limiter from its bounds."""

from typing import Any

import numpy as np
import numpy.typing as npt

from distrl.replay.table.rate_limiter import RateLimiter


class ErrorMargins:
    """The smallest distances of `inserts * samples_per_insert - samples` from its bounds so far."""

    def __init__(self, margins: npt.NDArray[Any]):
        """Args: margins: float64 `[2]`, storage for the two margins."""
        self._margins: Any = margins.data  # reading an item of it takes a quarter of NumPy's time

    def reset(self) -> None:
        """Sets both margins to infinity."""
        self._margins[0] = self._margins[1] = np.inf

    def note_sample(self, counts: RateLimiter) -> None:
        """Takes into account the counts after a sample."""
        margin = counts.error - counts.limits.min_diff
        self._margins[0] = min(self._margins[0], margin)

    def note_insert(self, counts: RateLimiter, pending: int) -> None:
        """Takes into account an admitted insert. Args: pending: inserts not counted yet."""
        limits = counts.limits
        if counts.size + pending > limits.min_size_to_sample:  # or else inserts are free
            error = counts.error + pending * limits.samples_per_insert
            self._margins[1] = min(self._margins[1], limits.max_diff - error)

    def get(self) -> tuple[float, float]:
        """Returns the margins above `min_diff` and below `max_diff`."""
        return self._margins[0], self._margins[1]
