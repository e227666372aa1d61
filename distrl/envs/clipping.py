"""Continuous actions within their bounds, as environments get them."""

import jax
import numpy as np

from distrl import specs
from distrl.types import Nest


class ActionClip:
    """Clips the floats of actions to the bounds of their specs, for all environments at once."""

    def __init__(self, spec: Nest):
        """Args: spec: of one environment's action."""
        leaves, self._structure = jax.tree.flatten(spec, is_leaf=specs.is_spec)
        # Of each leaf with bounds: index, shape, dtype, minimum and maximum.
        self._bounded = [
            (i, tuple(leaf.shape), np.dtype(leaf.dtype), leaf.minimum, leaf.maximum)
            for i, leaf in enumerate(leaves)
            if specs.is_clippable(leaf)
        ]
        self._is_single = specs.is_spec(spec)

    @property
    def has_effect(self) -> bool:
        """Whether any part of the action is of floats that have a bound."""
        return bool(self._bounded)

    def __call__(self, action: Nest, count: int) -> Nest:
        """Returns the action with new arrays in the place of those with bounds.

        What is of another structure, shape or dtype stays as it is, for a pool's check of it.

        Args:
          action: nest `[count, ...]`.
          count: number of environments.
        """
        if self._is_single:
            leaves = [action]
        else:
            leaves, structure = jax.tree.flatten(action)
            if structure != self._structure:
                return action
        for i, shape, dtype, low, high in self._bounded:
            array = leaves[i]
            if getattr(array, "shape", None) == (count, *shape) and array.dtype == dtype:
                clipped = np.maximum(array, low)  # half the time of `np.clip`
                leaves[i] = np.minimum(clipped, high, out=clipped)
        return leaves[0] if self._is_single else self._structure.unflatten(leaves)
