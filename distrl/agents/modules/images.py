"""Which parts of an observation are images, and the order of their axes.

An image is an array with three axes, of any dtype, or of bytes with two. Which of three axes has
the channels is a setting of networks and transforms, `image_layout`, whose default is the rule of
`channel_axis`.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from dm_env import specs as dm_specs

from distrl import specs
from distrl.types import Nest

LAYOUTS = ("auto", "chw", "hwc")

MOST_SYMBOLS = 64
"""Values of an integer that stands for one of several things; with more it is a quantity."""

_LARGE = 36  # pixels of the shorter side, from which the CNN of Atari's agents has room


def is_image(leaf: Any) -> bool:
    """Whether an array is an image: [C, H, W] or [H, W, C] of any dtype, or uint8 [H, W].

    Args:
      leaf: a spec, or an array without leading axes.
    """
    axes = len(leaf.shape)
    return axes == 3 or (axes == 2 and np.dtype(leaf.dtype) == np.uint8)


def channel_axis(shape: tuple[int, ...], layout: str = "auto") -> int | None:
    """Returns the axis that has an image's channels, 0 or 2; None for [H, W].

    With "auto" the other two axes are equal if that is possible in one way only: [84, 84, 3] and
    [8, 8, 111] have their channels last, [4, 84, 84] first. Otherwise the channels are the shorter
    of the first and the last axis, the first if they are equal: [210, 160, 3], [3, 210, 160].

    Args:
      shape: the image's.
      layout: one of LAYOUTS.
    """
    if len(shape) == 2:
        return None
    if layout != "auto":
        return {"chw": 0, "hwc": 2}[layout]
    first, middle, last = shape
    if (first == middle) != (middle == last):
        return 2 if first == middle else 0
    return 2 if last < first else 0


def sides(shape: tuple[int, ...], layout: str = "auto") -> tuple[int, int]:
    """Returns an image's height and width."""
    channels = channel_axis(shape, layout)
    height, width = (size for axis, size in enumerate(shape) if axis != channels)
    return height, width


def is_large(leaf: Any, layout: str = "auto") -> bool:
    """Whether an array is an image of at least 36x36 pixels."""
    return is_image(leaf) and min(sides(leaf.shape, layout)) >= _LARGE


def has_any(observation: Nest) -> bool:
    """Whether an observation has an image, by itself or among others."""
    return any(map(is_image, jax.tree.leaves(observation, is_leaf=specs.is_spec)))


def has_large(observation: Nest) -> bool:
    """Whether an observation has an image of at least 36x36 pixels, likewise."""
    return any(is_large(leaf) for leaf in jax.tree.leaves(observation, is_leaf=specs.is_spec))


def has_channels_last(observation: Nest) -> bool:
    """Whether an observation has an image that "auto" takes as [H, W, C]."""
    leaves = jax.tree.leaves(observation, is_leaf=specs.is_spec)
    return any(is_image(leaf) and channel_axis(leaf.shape) == 2 for leaf in leaves)


def to_nhwc(
    leaf: Any, x: jax.Array, layout: str, scale_integers: bool, one_hot_integers: bool = False
) -> jax.Array:
    """Returns images as float32 [N, H, W, C], integers scaled from their bounds to [0, 1].

    Args:
      leaf: the image's spec.
      x: [N, *leaf.shape].
      layout: one of LAYOUTS.
      scale_integers: False: only bytes are scaled, by 255; other integers stay as they are.
      one_hot_integers: symbols become one-hot instead, so that C is the number of their values.
    """
    axis = channel_axis(leaf.shape, layout)
    order = {None: (0, 1, 2), 0: (0, 2, 3, 1), 2: (0, 1, 2, 3)}[axis]
    if symbols := symbol_values(leaf) if one_hot_integers else []:
        values = np.reshape(symbols, leaf.shape)
        x = jnp.transpose(x.astype(jnp.int32) - np.asarray(leaf.minimum, np.int32), order)
        x = x[..., None] if axis is None else x
        kinds = values.max(axis=tuple(i for i in range(values.ndim) if i != axis)).reshape(-1)
        layers = [jax.nn.one_hot(x[..., i], int(n), dtype=jnp.float32) for i, n in enumerate(kinds)]
        return jnp.concatenate(layers, axis=-1)
    is_byte = np.dtype(leaf.dtype) == np.uint8
    scale = integer_scale(leaf) if scale_integers else None
    plain = scale is None or (is_byte and (scale[0] == 0).all() and (scale[1] == 255).all())
    if scale is not None and not plain:
        x = jnp.divide(x.astype(jnp.float32) - scale[0], scale[1])
    x = jnp.transpose(x, order).astype(jnp.float32)
    if is_byte and plain:
        x = x * (1 / 255)
    return x[..., None] if axis is None else x


def symbol_values(leaf: Any) -> list[int]:
    """Returns how many values each element of an array of symbols has; [] for another array.

    Symbols are bounded integers of at most MOST_SYMBOLS values, such as a grid's objects.
    """
    values = specs.num_values(leaf)
    return values if values and max(values) <= MOST_SYMBOLS else []


def integer_scale(leaf: Any) -> tuple[npt.NDArray[Any], npt.NDArray[Any]] | None:
    """Returns what a network subtracts from an array of integers, and what it divides by.

    Bounds are mapped to 0 and 1; without bounds those of a dtype of 8 or 16 bits, such as bytes.
    Wider integers without bounds of their own are left as they are.

    Args:
      leaf: a spec.

    Returns:
      float32 arrays of the leaf's shape; None if there is nothing to scale: for floats and for a
      DiscreteArray, which becomes one-hot.
    """
    if isinstance(leaf, dm_specs.DiscreteArray) or not np.issubdtype(leaf.dtype, np.integer):
        return None
    info = np.iinfo(leaf.dtype)
    low, high = (
        np.broadcast_to(np.asarray(getattr(leaf, name, limit), np.float64), leaf.shape)
        for name, limit in (("minimum", info.min), ("maximum", info.max))
    )
    known = (low > min(info.min, -1)) & (high < info.max) | (info.bits <= 16)
    if not known.any():
        return None
    return (
        np.where(known, low, 0).astype(np.float32),
        np.where(known & (low < high), high - low, 1).astype(np.float32),
    )
