"""The sum tree against cumulative sums."""

import numpy as np
import pytest

from distrl.replay.table.sum_tree import SumTree


@pytest.mark.parametrize("capacity", [1, 2, 5, 64, 100])
def test_sum_tree(capacity):
    rng = np.random.default_rng(capacity)
    tree, weights = SumTree(capacity), np.zeros(capacity)
    for _ in range(20):
        slots = rng.integers(capacity, size=7)
        new = rng.random(7) * rng.integers(0, 2, 7)
        tree.set(slots, new)
        weights[slots] = new
        np.testing.assert_array_equal(tree.get(np.arange(capacity)), weights)
        np.testing.assert_allclose(tree.total, weights.sum(), rtol=1e-12)
    tree.set(np.array([0]), np.array([1.0]))
    weights[0] = 1.0
    ends = np.cumsum(weights)
    masses = rng.random(1000) * ends[-1]
    slots = tree.find(masses)
    np.testing.assert_array_equal(slots, np.searchsorted(ends, masses, side="right"))
    last = tree.find(np.array([tree.total]))  # rounding may give the total itself
    assert weights[last[0]] > 0
