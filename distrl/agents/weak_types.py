"""Removes JAX's weak types, so that a function is compiled once for all calls."""

from typing import Any

import jax
import jax.numpy as jnp

from distrl.types import Nest


def strong(nest: Nest) -> Nest:
    """Returns a nest without weak types, to be traced.

    A leaf that comes from Python's numbers alone, such as `jnp.full((), 1.0)`, has a weak type
    until it is computed with others: what was compiled for the first call would not serve for the
    second.
    """

    def typed(leaf: Any) -> jax.Array:
        return jax.lax.convert_element_type(leaf, jnp.result_type(leaf))

    return jax.tree.map(typed, nest)
