"""Checks whether a policy that was made for one environment can act in another."""

import itertools
from typing import Any

import jax
import numpy as np
from dm_env import specs as dm_specs

from distrl import specs
from distrl.types import Nest


def different_part(
    made_for: specs.EnvironmentSpec, other: specs.EnvironmentSpec
) -> tuple[str, str, str] | None:
    """Returns the first part of an environment that a policy was not made for; None: it can act.

    Structures, shapes, dtypes, bounds of actions, and the numbers from which integers count must be
    the same. Integers of an observation may have narrower bounds, not wider ones: networks make
    them one-hot, or scale them, by the bounds that they were made for. Bounds of floats in
    observations are known for some libraries' environments only, and do not count.

    Args:
      made_for: spec of the policy's environment.
      other: spec of the other one.

    Returns:
      The part, "observation", "action" or "reward", and its two specs for a message.
    """
    for part in ("observation", "action", "reward"):
        was, now = getattr(made_for, part), getattr(other, part)
        starts = [getattr(spec, f"{part}_start", None) for spec in (made_for, other)]
        if (
            specs.struct(was) != specs.struct(now)
            or not equal_starts(*starts)
            or (part == "action" and was != now)
            or (part == "observation" and not _is_within(now, was))
        ):
            return part, described(was, starts[0]), described(now, starts[1])
    return None


def _is_within(spec: Nest, wider: Nest) -> bool:
    """Whether integers of a spec lie within the bounds of another of the same structure."""
    pairs = zip(*(jax.tree.leaves(nest, is_leaf=specs.is_spec) for nest in (spec, wider)))
    for inner, outer in pairs:
        if np.issubdtype(inner.dtype, np.integer):
            (low, high), (lowest, highest) = _bounds(inner), _bounds(outer)
            if np.any(low < lowest) or np.any(high > highest):
                return False
    return True


def _bounds(leaf: Any) -> tuple[Any, Any]:
    if isinstance(leaf, dm_specs.BoundedArray):
        return leaf.minimum, leaf.maximum
    limits = np.iinfo(leaf.dtype)
    return limits.min, limits.max


def equal_starts(one: Nest, other: Nest) -> bool:
    """Compares two nests of `EnvironmentSpec`'s starts; None stands for zeros."""
    pairs = itertools.zip_longest(jax.tree.leaves(one), jax.tree.leaves(other), fillvalue=0)
    return all(np.all(np.equal(*pair)) for pair in pairs)


def described(spec: Nest, start: Nest) -> str:
    """Returns a spec, and the numbers from which its integers count, as a message's text."""
    counted = "" if equal_starts(start, None) else f", counted from {start}"
    return " ".join(f"{spec}{counted}".split())
