"""Clips continuous actions to their bounds before environments get them."""

import jax
import numpy as np

from distrl import specs
from distrl.types import Nest


class ActionClip:
    """Clips the floats of actions to the bounds of their specs, for all environments at once."""

    def __init__(self, spec: Nest):
        """Args: spec: spec of one environment's action."""
        leaves, self._structure = jax.tree.flatten(spec, is_leaf=specs.is_spec)
        # By leaf with bounds: index, shape, dtype, minimum and maximum.
        self._bounded = [
            (i, tuple(leaf.shape), np.dtype(leaf.dtype), leaf.minimum, leaf.maximum)
            for i, leaf in enumerate(leaves)
            if specs.is_clippable(leaf)
        ]
        self._is_single = specs.is_spec(spec)

    @property
    def has_effect(self) -> bool:
        """Whether any part of the action has floats with a bound."""
        return bool(self._bounded)

    def __call__(self, action: Nest, count: int) -> Nest:
        """Returns the action, with new arrays where there are bounds.

        Actions of another structure, shape or dtype stay as they are, for the pool's check.

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
