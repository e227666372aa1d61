"""A sum tree: vectorized sampling in proportion to weights, in logarithmic time."""

from typing import Any

import numpy as np
import numpy.typing as npt


class SumTree:
    """Weights of the slots `0 .. capacity - 1`, initially 0.

    A binary heap of sums in one array (Schaul et al. 2016, appendix B.2.1): node i is the sum of
    nodes 2i and 2i + 1, the leaves come last. Each change recomputes the sums above it from their
    two parts, so errors do not accumulate.
    """

    def __init__(self, capacity: int, sums: npt.NDArray[Any] | None = None):
        """Args:
        capacity: number of slots.
        sums: float64 `[nodes(capacity)]`, storage for the tree; None: allocated here.
        """
        self._leaves = self.nodes(capacity) // 2
        self._depth = self._leaves.bit_length() - 1
        self._sums = np.zeros(2 * self._leaves) if sums is None else sums
        self._pairs = self._sums.reshape(-1, 2)  # row i has both parts of node i

    @staticmethod
    def nodes(capacity: int) -> int:
        """Returns the array length of a tree for `capacity` slots; node 0 is unused."""
        return 2 << max(capacity - 1, 0).bit_length()

    @property
    def total(self) -> float:
        """The sum of all weights."""
        return float(self._sums[1])

    def get(self, slots: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Returns the weights `[n]` of `slots` `[n]`."""
        return self._sums[slots + self._leaves]

    def set(self, slots: npt.NDArray[Any], weights: npt.NDArray[Any]) -> None:
        """Sets weights `[n]` of `slots` `[n]`; for a duplicate slot the last one counts."""
        nodes = slots + self._leaves
        sums = self._sums
        sums[nodes] = weights
        # A duplicate node is computed twice from the same parts: cheaper than removing duplicates.
        for _ in range(self._depth):
            nodes >>= 1
            left, right = self._parts(nodes)
            sums[nodes] = left + right

    def reset(self, slots: npt.NDArray[Any], weights: npt.NDArray[Any]) -> None:
        """Sets weights `[n]` of `slots` `[n]`, all others to 0, and recomputes every sum."""
        leaves = self._sums[self._leaves :]
        leaves[:] = 0.0
        leaves[slots] = weights
        level = self._leaves
        while level > 1:
            pairs = self._sums[level : 2 * level].reshape(-1, 2)
            np.sum(pairs, axis=1, out=self._sums[level // 2 : level])
            level //= 2

    def find(self, masses: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Returns the slots `[n]` of `masses` `[n]` in `[0, total)`; never one of weight 0."""
        masses = np.array(masses)
        nodes = np.ones(len(masses), np.int64)
        for _ in range(self._depth):
            left, right = self._parts(nodes)
            # Rounding may leave a mass just past the last slot with a positive weight.
            goes_right = (masses >= left) & (right > 0)
            masses -= left * goes_right
            nodes += nodes
            nodes += goes_right
        return nodes - self._leaves

    def _parts(self, nodes: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Returns the sums of the nodes below `nodes` `[n]` on the left, and on the right."""
        pairs = self._pairs.take(nodes, axis=0, mode="clip")  # which is faster than "raise"
        return pairs[:, 0], pairs[:, 1]
