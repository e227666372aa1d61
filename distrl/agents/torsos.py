"""The networks' first part: observations [N, ...] to features [N, F]."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from dm_env import specs as dm_specs

from distrl import specs
from distrl.errors import ConfigError
from distrl.types import Nest

Torso = Callable[[Nest], jax.Array]
MakeLayer = Callable[..., Callable[[jax.Array], jax.Array]]  # hk.Linear, or like it

TORSOS = ("mlp", "nature_cnn", "shallow_cnn", "impala_resnet")
ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {"tanh": jnp.tanh, "relu": jax.nn.relu}

# What is left after the strides is 1 or more.
_MIN_PIXELS = {"nature_cnn": 36, "shallow_cnn": 20, "impala_resnet": 8}


def scaled(gain: float) -> hk.initializers.Initializer:
    """Returns weights whose outputs have `gain` times the standard deviation of the inputs."""
    return hk.initializers.VarianceScaling(gain**2, "fan_in", "truncated_normal")


def for_observation(
    torso: str,
    hidden_sizes: Sequence[int],
    activation: str,
    spec: Nest,
    linear: MakeLayer = hk.Linear,
    scale_integers: bool = True,
    with_last: bool = True,
) -> Callable[[], Torso]:
    """Returns a function that, inside `hk.transform`, makes the torso for an observation.

    Args:
      torso: one of TORSOS, or "auto": the CNN for uint8 pixels [C, H, W], otherwise the MLP.
      hidden_sizes: sizes of the MLP's layers.
      activation: the MLP's, a key of ACTIVATIONS.
      spec: spec of the observation: uint8 pixels [C, H, W] for the convolutional torsos; for the
        MLP a nest of scalars and vectors (those with a DiscreteArray spec become one-hot).
      linear: makes the fully connected layers.
      scale_integers: the MLP takes integers scaled from their bounds to [0, 1]; see
        `integer_scale`.
      with_last: False: without the last fully connected layer, which is then `last_layer`'s.

    Raises:
      ConfigError: torso and observation do not fit.
    """
    torso = _resolved(torso, spec)
    if torso == "mlp":
        _check_vectors(spec)
        sizes = hidden_sizes if with_last else hidden_sizes[:-1]
        return lambda: _mlp(sizes, ACTIVATIONS[activation], spec, linear, scale_integers)
    least = _MIN_PIXELS[torso]
    if not is_pixels(spec) or min(spec.shape[1:]) < least:
        raise ConfigError(
            f"network.torso: {torso} takes uint8 pixels [C, H, W] of at least {least}x{least}, "
            f"got the observation {_describe(spec)}"
        )
    if torso in _PLAIN:
        return functools.partial(_plain_cnn, torso, linear, with_last)
    return functools.partial(_impala_resnet, linear, with_last)


def last_layer(
    torso: str,
    hidden_sizes: Sequence[int],
    activation: str,
    spec: Nest,
    linear: MakeLayer = hk.Linear,
) -> Callable[[str], Callable[[jax.Array], jax.Array]]:
    """Returns a function that, inside `hk.transform`, makes a torso's last fully connected layer.

    It takes the layer's name. An MLP without layers has none: the features stay as they are.
    Arguments are those of `for_observation`.
    """
    torso = _resolved(torso, spec)
    if torso == "mlp":
        if not hidden_sizes:
            return lambda name: lambda x: x
        return lambda name: _layer(linear, hidden_sizes[-1], activation, scaled(1.0), name)
    if torso in _PLAIN:
        return lambda name: _layer(linear, _PLAIN[torso][1], "relu", scaled(2**0.5), name)
    return lambda name: _layer(linear, _RESNET_FEATURES, "relu", None, name)


def _layer(
    linear: MakeLayer,
    size: int,
    activation: str,
    w_init: hk.initializers.Initializer | None,
    name: str,
) -> Callable[[jax.Array], jax.Array]:
    layer = linear(size, w_init=w_init, name=name)
    return lambda x: ACTIVATIONS[activation](layer(x))


def _resolved(torso: str, spec: Nest) -> str:
    """Returns the torso that "auto" stands for."""
    if torso != "auto":
        return torso
    return "nature_cnn" if is_pixels(spec) else "mlp"


def is_pixels(observation: Nest) -> bool:
    """Whether an observation is one image: uint8 [C, H, W]."""
    return (
        specs.is_spec(observation)
        and len(observation.shape) == 3
        and np.dtype(observation.dtype) == np.uint8
    )


def integer_scale(leaf: Any) -> tuple[npt.NDArray[Any], npt.NDArray[Any]] | None:
    """Returns what the MLP subtracts from an array of integers, and what it divides by.

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


def has_scaled_integers(observation: Nest) -> bool:
    """Whether `scale_integers` makes a difference to the network of an observation."""
    leaves = jax.tree.leaves(observation, is_leaf=specs.is_spec)
    return not is_pixels(observation) and any(integer_scale(leaf) is not None for leaf in leaves)


def _check_vectors(spec: Nest) -> None:
    leaves = jax.tree.leaves(spec, is_leaf=specs.is_spec)
    if not leaves or any(len(leaf.shape) > 1 for leaf in leaves):
        raise ConfigError(
            "network.torso: the mlp takes scalars and vectors, or a nest of them, got the "
            f"observation {_describe(spec)}"
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


def _mlp(
    sizes: Sequence[int],
    activation: Callable[[jax.Array], jax.Array],
    spec: Nest,
    linear: MakeLayer,
    scale_integers: bool,
) -> Torso:
    net = _MLP(sizes, activation, linear, name="torso")

    def flat(leaf: dm_specs.Array, x: jax.Array) -> jax.Array:
        if isinstance(leaf, dm_specs.DiscreteArray):
            return jax.nn.one_hot(x, leaf.num_values)
        x = x.astype(jnp.float32)
        scale = integer_scale(leaf) if scale_integers else None
        if scale is not None:
            x = jnp.divide(x - scale[0], scale[1])
        return x.reshape(x.shape[0], -1)

    def torso(observation: Nest) -> jax.Array:
        leaves = jax.tree.leaves(jax.tree.map(flat, spec, observation, is_leaf=specs.is_spec))
        return net(jnp.concatenate(leaves, axis=-1))

    return torso


def _to_nhwc(pixels: jax.Array) -> jax.Array:
    """Converts uint8 [N, C, H, W] to float32 [N, H, W, C] in [0, 1]."""
    return jnp.transpose(pixels, (0, 2, 3, 1)).astype(jnp.float32) * (1 / 255)


# Channels, kernel and stride of each plain CNN's convolutions, and the features after them. The
# DQN's network, https://doi.org/10.1038/nature14236; and the first DQN's with a third of the work,
# https://arxiv.org/abs/1312.5602.
_PLAIN = {
    "nature_cnn": (((32, 8, 4), (64, 4, 2), (64, 3, 1)), 512),
    "shallow_cnn": (((16, 8, 4), (32, 4, 2)), 256),
}


def _plain_cnn(name: str, linear: MakeLayer, with_last: bool) -> Torso:
    convolutions, features = _PLAIN[name]
    layers: list[Any] = []
    w_init = scaled(2**0.5)  # a relu halves the variance (He et al. 2015, arXiv:1502.01852)
    for convolution in convolutions:
        layers += [hk.Conv2D(*convolution, padding="VALID", w_init=w_init), jax.nn.relu]
    layers.append(hk.Flatten())
    if with_last:
        layers += [linear(features, w_init=w_init), jax.nn.relu]
    net = hk.Sequential(layers, name="torso")
    return lambda pixels: net(_to_nhwc(pixels))


_RESNET_FEATURES = 256


class _ImpalaResNet(hk.Module):
    """The deep network of IMPALA without its LSTM, https://arxiv.org/abs/1802.01561 (figure 3)."""

    def __init__(self, linear: MakeLayer, with_last: bool, name: str):
        super().__init__(name=name)
        self._linear = linear
        self._with_last = with_last

    def __call__(self, x: jax.Array) -> jax.Array:
        for channels in (16, 32, 32):
            x = hk.Conv2D(channels, 3)(x)
            x = hk.max_pool(x, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
            for _ in range(2):
                y = hk.Conv2D(channels, 3)(jax.nn.relu(x))
                x = x + hk.Conv2D(channels, 3)(jax.nn.relu(y))
        x = hk.Flatten()(jax.nn.relu(x))
        return jax.nn.relu(self._linear(_RESNET_FEATURES)(x)) if self._with_last else x


def _impala_resnet(linear: MakeLayer, with_last: bool) -> Torso:
    net = _ImpalaResNet(linear, with_last, name="torso")
    return lambda pixels: net(_to_nhwc(pixels))
