"""A sum tree: sampling in proportion to weights, in logarithmic time, many at once."""

import numpy as np


class SumTree:
    """Weights of the slots `0 .. capacity - 1`, all 0 at first.

    A binary heap of sums in one array (Schaul et al. 2016, appendix B.2.1): node i is the sum of
    nodes 2i and 2i + 1, the leaves come last. Sums are made anew from their two parts at each
    change, so errors do not build up.
    """

    def __init__(self, capacity: int, sums: np.ndarray | None = None):
        """Args:
        capacity: of slots.
        sums: float64 `[nodes(capacity)]` in which the tree is kept; None: its own.
        """
        self._leaves = self.nodes(capacity) // 2
        self._depth = self._leaves.bit_length() - 1
        self._sums = np.zeros(2 * self._leaves) if sums is None else sums

    @staticmethod
    def nodes(capacity: int) -> int:
        """Of a tree for `capacity` slots; one of them is not used."""
        return 2 << max(capacity - 1, 0).bit_length()

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
        sums = self._sums
        sums[nodes] = weights
        # A node that comes twice is made twice, of the same parts: cheaper than to find out.
        for _ in range(self._depth):
            nodes >>= 1
            left = 2 * nodes
            sums[nodes] = sums[left] + sums[left + 1]

    def reset(self, slots: np.ndarray, weights: np.ndarray) -> None:
        """Sets weights `[n]` of `slots` `[n]`, all others to 0, and makes every sum anew."""
        leaves = self._sums[self._leaves :]
        leaves[:] = 0.0
        leaves[slots] = weights
        level = self._leaves
        while level > 1:
            pairs = self._sums[level : 2 * level].reshape(-1, 2)
            np.sum(pairs, axis=1, out=self._sums[level // 2 : level])
            level //= 2

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
