"""Random values of specs, for checks of parts of one's own."""

from typing import Any

import jax
import numpy as np
import numpy.typing as npt
from dm_env import specs as dm_specs

from distrl import specs
from distrl.types import Nest

_MOST = 256  # different values of an integer


def random_values(random: np.random.Generator, spec: Nest, *leading: int) -> Nest:
    """Returns random arrays `[*leading, ...]` within the bounds of their specs.

    Floats are of size 2 or so, and integers small. The first action of an action mask is legal.

    Args:
      random: where the numbers come from.
      spec: nest of specs.
      leading: the leading axes.
    """
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: _leaf(random, leaf, specs.path_name(path), leading),
        spec,
        is_leaf=specs.is_spec,
    )


def _leaf(
    random: np.random.Generator, leaf: Any, name: str, leading: tuple[int, ...]
) -> npt.NDArray[Any]:
    shape, dtype = (*leading, *leaf.shape), np.dtype(leaf.dtype)
    if dtype.kind == "b":
        value: npt.NDArray[Any] = random.random(shape) < 0.5
    elif dtype.kind in "iu":
        low, high = _bounds(leaf, np.int64, 0, 9)
        low = np.clip(-_MOST // 2, low, high)
        value = random.integers(low, np.minimum(high, low + _MOST - 1) + 1, shape)
    else:
        low, high = _bounds(leaf, np.float64, -np.inf, np.inf)
        value = np.clip(2 * random.normal(size=shape), low, high)
    if name == specs.ACTION_MASK:
        value[..., 0] = 1
    return value.astype(dtype)


def _bounds(leaf: Any, kind: type, low: float, high: float) -> tuple[Any, Any]:
    if not isinstance(leaf, dm_specs.BoundedArray):
        return low, high
    return leaf.minimum.astype(kind), leaf.maximum.astype(kind)
