"""A sum tree: sampling in proportion to weights, in logarithmic time, many at once."""

import numpy as np


class SumTree:
    """Weights of the slots `0 .. capacity - 1`, all 0 at first.

    A binary heap of sums in one array (Schaul et al. 2016, appendix B.2.1): node i is the sum of
    nodes 2i and 2i + 1, the leaves come last. Sums are made anew from their two parts at each
    change, so errors do not build up.
    """

    def __init__(self, capacity: int):
        self._depth = max(capacity - 1, 0).bit_length()
        self._leaves = 1 << self._depth
        self._sums = np.zeros(2 * self._leaves)

    @property
    def total(self) -> float:
        """Of all weights."""
        return float(self._sums[1])

    def get(self, slots: np.ndarray) -> np.ndarray:
        """Weights `[n]` of `slots` `[n]`."""
        return self._sums[slots + self._leaves]

    def set(self, slots: np.ndarray, weights: np.ndarray) -> None:
        """Sets weights `[n]` of `slots` `[n]`; of a slot that comes twice the last one stays."""
        nodes = slots + self._leaves
        self._sums[nodes] = weights
        for _ in range(self._depth):
            nodes = np.unique(nodes >> 1)
            self._sums[nodes] = self._sums[2 * nodes] + self._sums[2 * nodes + 1]

    def find(self, masses: np.ndarray) -> np.ndarray:
        """Slots `[n]` in which `masses` `[n]`, in `[0, total)`, fall. None has weight 0."""
        masses = np.array(masses)
        nodes = np.ones(len(masses), np.int64)
        for _ in range(self._depth):
            left = self._sums[2 * nodes]
            # Rounding may leave a mass just past the last slot that has a weight.
            right = (masses >= left) & (self._sums[2 * nodes + 1] > 0)
            masses -= np.where(right, left, 0.0)
            nodes = 2 * nodes + right
        return nodes - self._leaves
