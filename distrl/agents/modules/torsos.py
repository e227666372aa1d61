"""The networks' first part: observations [N, ...] to features [N, F]."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
from dm_env import specs as dm_specs

from distrl import specs
from distrl.agents.modules.cnns import CNN, MIN_PIXELS, MakeLayer, last_layer_of, make_cnn, scaled
from distrl.agents.modules.images import (
    channel_axis,
    has_any,
    has_large,
    integer_scale,
    is_image,
    is_large,
    sides,
    symbol_values,
    to_nhwc,
)
from distrl.errors import ConfigError
from distrl.types import Nest

Torso = Callable[[Nest], jax.Array]

TORSOS = ("mlp", *MIN_PIXELS)
ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {"tanh": jnp.tanh, "relu": jax.nn.relu}


def for_observation(
    torso: str,
    hidden_sizes: Sequence[int],
    activation: str,
    spec: Nest,
    linear: MakeLayer = hk.Linear,
    scale_integers: bool = True,
    with_last: bool = True,
    layout: str = "auto",
    one_hot_integers: bool = False,
    cnn_dtype: str = "float32",
) -> Callable[[], Torso]:
    """Returns a function that, inside `hk.transform`, makes the torso for an observation.

    A nest of images, vectors, matrices and numbers is taken apart: each image has a CNN, and its
    features and the rest go through the MLP together. An image by itself has the CNN only, and an
    observation without images the MLP only.

    Args:
      torso: one of TORSOS: "mlp", for all but large images, or the CNN of all images; "auto": for
        each image the CNN that suits its size ("nature_cnn" from 36 pixels on, "small_cnn" below).
      hidden_sizes: sizes of the MLP's layers.
      activation: the MLP's, a key of ACTIVATIONS.
      spec: spec of the observation; those with a DiscreteArray spec become one-hot.
      linear: makes the fully connected layers.
      scale_integers: integers are scaled from their bounds to [0, 1]; see `integer_scale`. False:
        only bytes of images are, by 255.
      with_last: False: without the last fully connected layer, which is then `last_layer`'s.
      layout: order of the images' axes, one of `images.LAYOUTS`.
      one_hot_integers: symbols become one-hot; see `images.symbol_values`.
      cnn_dtype: a key of `cnns.DTYPES`, in which CNNs compute.

    Raises:
      ConfigError: torso and observation do not fit.
    """
    _check(torso, spec, layout, cnn_dtype)
    integers = (scale_integers, one_hot_integers)
    if specs.is_spec(spec) and is_image(spec) and torso != "mlp":
        make = make_cnn(_cnn_for(torso, spec, layout), linear, with_last, cnn_dtype)
        return lambda: _of_image(make(), spec, layout, integers)
    sizes = hidden_sizes if with_last else hidden_sizes[:-1]
    mlp = ACTIVATIONS[activation]
    return lambda: _of_nest(torso, sizes, mlp, spec, linear, integers, layout, cnn_dtype)


def last_layer(
    torso: str,
    hidden_sizes: Sequence[int],
    activation: str,
    spec: Nest,
    linear: MakeLayer = hk.Linear,
    layout: str = "auto",
) -> Callable[[str], Callable[[jax.Array], jax.Array]]:
    """Returns a function that, inside `hk.transform`, makes a torso's last fully connected layer.

    It takes the layer's name. An MLP without layers has none: the features stay as they are.
    Arguments are those of `for_observation`.
    """
    if specs.is_spec(spec) and is_image(spec) and torso != "mlp":
        size, w_init = last_layer_of(_cnn_for(torso, spec, layout))
        return lambda name: _layer(linear, size, "relu", w_init, name)
    if not hidden_sizes:
        return lambda name: lambda x: x
    return lambda name: _layer(linear, hidden_sizes[-1], activation, scaled(1.0), name)


def _layer(
    linear: MakeLayer,
    size: int,
    activation: str,
    w_init: hk.initializers.Initializer | None,
    name: str,
) -> Callable[[jax.Array], jax.Array]:
    layer = linear(size, w_init=w_init, name=name)
    return lambda x: ACTIVATIONS[activation](layer(x))


def _cnn_for(torso: str, leaf: Any, layout: str) -> str:
    """Returns the CNN of an image."""
    if torso != "auto":
        return torso
    return "nature_cnn" if is_large(leaf, layout) else "small_cnn"


def has_convolutions(torso: Any, observation: Nest) -> bool:
    """Whether the torso for an observation has what XLA takes as convolutions.

    Args:
      torso: one of TORSOS, "auto", or the user's own, which has them if images are large.
      observation: spec of the observation.
    """
    if torso in ("small_cnn", "mlp"):
        return False
    if torso in TORSOS:
        return has_any(observation)
    return has_large(observation)


def has_scaled_integers(observation: Nest) -> bool:
    """Whether `scale_integers` makes a difference to the network of an observation."""
    leaves = jax.tree.leaves(observation, is_leaf=specs.is_spec)
    return any(
        integer_scale(leaf) is not None and not (is_image(leaf) and leaf.dtype == np.uint8)
        for leaf in leaves
    )


def _check(torso: str, spec: Nest, layout: str, cnn_dtype: str) -> None:
    """Refuses what the torso cannot take; the message says what it can."""
    leaves = jax.tree.leaves(spec, is_leaf=specs.is_spec)
    images = [leaf for leaf in leaves if is_image(leaf)]
    got = f"got the observation {_describe(spec)}"
    if not leaves or any(len(leaf.shape) > 3 for leaf in leaves):
        raise ConfigError(
            "network.torso: a network takes numbers, vectors, matrices and images [C, H, W] or "
            f"[H, W, C], or a nest of them ({'' if leaves else 'at least one; '}frames are stacked "
            f"by the transform frame_stack), {got}"
        )
    if torso == "mlp" and any(is_large(leaf, layout) for leaf in images):
        raise ConfigError(
            "network.torso: the mlp takes numbers, vectors, matrices and images of less than 36x36 "
            f"pixels, such as grids; use auto, {got}"
        )
    if cnn_dtype != "float32" and (torso == "mlp" or not images):
        raise ConfigError(
            f"network.cnn_dtype={cnn_dtype}: there is no CNN for the observation "
            f"{_describe(spec)}; leave it at float32"
        )
    if torso in ("auto", "mlp"):
        return
    least = MIN_PIXELS[torso]
    if not images or any(min(sides(leaf.shape, layout)) < least for leaf in images):
        shapes = ", ".join(
            f"{'x'.join(map(str, sides(leaf.shape, layout)))} pixels in "
            f"{1 if (axis := channel_axis(leaf.shape, layout)) is None else leaf.shape[axis]} "
            f"channels"
            for leaf in images
        )
        raise ConfigError(
            f"network.torso: {torso} takes images of at least {least}x{least}, {got}"
            + (f": {shapes} (network.image_layout={layout})" if images else "")
        )


def _describe(spec: Nest) -> str:
    leaf = lambda s: f"{np.dtype(s.dtype)}{list(s.shape)}"  # noqa: E731
    return str(jax.tree.map(leaf, spec, is_leaf=specs.is_spec))


class _MLP(hk.Module):
    """`hk.nets.MLP` with a choice of layers, and the activation after each."""

    def __init__(
        self,
        sizes: Sequence[int],
        activation: Callable[[jax.Array], jax.Array],
        linear: MakeLayer,
        name: str,
    ):
        super().__init__(name=name)
        self._layers = [
            linear(size, w_init=scaled(1.0), name=f"linear_{i}") for i, size in enumerate(sizes)
        ]
        self._activation = activation

    def __call__(self, x: jax.Array) -> jax.Array:
        for layer in self._layers:
            x = self._activation(layer(x))
        return x


def _of_image(cnn: CNN, spec: Any, layout: str, integers: tuple[bool, bool]) -> Torso:
    return lambda x: cnn(to_nhwc(spec, x, layout, *integers))


def _of_nest(
    torso: str,
    sizes: Sequence[int],
    activation: Callable[[jax.Array], jax.Array],
    spec: Nest,
    linear: MakeLayer,
    integers: tuple[bool, bool],
    layout: str,
    cnn_dtype: str,
) -> Torso:
    """Returns the MLP of everything but images, and of each image's features."""
    paths, structure = jax.tree_util.tree_flatten_with_path(spec, is_leaf=specs.is_spec)
    net = _MLP(sizes, activation, linear, name="torso")
    parts = [
        _image_part(torso, path, leaf, linear, integers, layout, cnn_dtype)
        if is_image(leaf) and torso != "mlp"
        else _vector_part(leaf, layout, *integers)
        for path, leaf in paths
    ]

    def apply(observation: Nest) -> jax.Array:
        values = structure.flatten_up_to(observation)
        rows = [part(x) for part, x in zip(parts, values, strict=True)]
        return net(jnp.concatenate(rows, axis=-1))

    return apply


def _image_part(
    torso: str,
    path: Any,
    leaf: Any,
    linear: MakeLayer,
    integers: tuple[bool, bool],
    layout: str,
    cnn_dtype: str,
) -> Callable[[jax.Array], jax.Array]:
    """Returns an image's CNN, in a module of its own that has the image's name."""
    make = make_cnn(_cnn_for(torso, leaf, layout), linear, True, cnn_dtype)
    name = re.sub(r"\W", "_", specs.path_name(path))
    return hk.to_module(lambda x: _of_image(make(), leaf, layout, integers)(x))(
        name=f"torso_{name}"
    )


def _vector_part(
    leaf: Any, layout: str, scale_integers: bool, one_hot_integers: bool
) -> Callable[[jax.Array], jax.Array]:
    """Returns a function from an array that has no CNN to rows of float32."""
    if is_image(leaf):

        def flat_image(x: jax.Array) -> jax.Array:
            x = to_nhwc(leaf, x, layout, scale_integers, one_hot_integers)
            return x.reshape(x.shape[0], -1)

        return flat_image
    symbols = symbol_values(leaf) if one_hot_integers else []

    def flat(x: jax.Array) -> jax.Array:
        if isinstance(leaf, dm_specs.DiscreteArray):
            return jax.nn.one_hot(x, leaf.num_values, dtype=jnp.float32)
        if symbols:
            index = (x.astype(jnp.int32) - np.asarray(leaf.minimum, np.int32)).reshape(len(x), -1)
            elements = [
                jax.nn.one_hot(index[:, i], n, dtype=jnp.float32) for i, n in enumerate(symbols)
            ]
            return jnp.concatenate(elements, axis=-1)
        x = x.astype(jnp.float32)
        scale = integer_scale(leaf) if scale_integers else None
        if scale is not None:
            x = jnp.divide(x - scale[0], scale[1])
        return x.reshape(x.shape[0], -1)

    return flat
