"""Convolutional networks for images, float32 [N, H, W, C] to features [N, F]."""

import functools
from collections.abc import Callable
from typing import Any

import haiku as hk
import jax
import jax.numpy as jnp

from distrl.agents.modules.convolution import Conv2D, SmallConv2D, max_pool

MakeLayer = Callable[..., Callable[[jax.Array], jax.Array]]  # hk.Linear, or like it
CNN = Callable[[jax.Array], jax.Array]

# Channels, kernel and stride of each plain CNN's convolutions, and the features after them. The
# DQN's network, https://doi.org/10.1038/nature14236; the first DQN's with a third of the work,
# https://arxiv.org/abs/1312.5602; and one for images of any size, such as grids of a few cells,
# whose first layer looks at each cell and its neighbours.
_PLAIN: dict[str, tuple[tuple[tuple[int, int, int], ...], int]] = {
    "nature_cnn": (((32, 8, 4), (64, 4, 2), (64, 3, 1)), 512),
    "shallow_cnn": (((16, 8, 4), (32, 4, 2)), 256),
    "small_cnn": (((16, 3, 1), (32, 3, 2), (64, 3, 2)), 128),
}
_RESNET_FEATURES = 256

DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}
"""What a CNN may compute in, by name; NumPy's dtype of the name may be another package's."""

MIN_PIXELS = {"nature_cnn": 36, "shallow_cnn": 20, "impala_resnet": 8, "small_cnn": 1}
"""Pixels of the shorter side, so that what is left after the strides is 1 or more."""


def scaled(gain: float) -> hk.initializers.Initializer:
    """Returns weights whose outputs have `gain` times the standard deviation of the inputs."""
    return hk.initializers.VarianceScaling(gain**2, "fan_in", "truncated_normal")


def last_layer_of(name: str) -> tuple[int, hk.initializers.Initializer | None]:
    """Returns the features of a CNN's fully connected layer, and its initialiser."""
    if name in _PLAIN:
        return _PLAIN[name][1], scaled(2**0.5)
    return _RESNET_FEATURES, None


def _relu(x: jax.Array) -> jax.Array:
    """Returns max(x, 0), computed in float32: XLA's gradient in bfloat16 is slow on CPUs."""
    return jax.nn.relu(x.astype(jnp.float32)).astype(x.dtype)


def make_cnn(name: str, linear: MakeLayer, with_last: bool, dtype: str) -> Callable[[], CNN]:
    """Returns a function that, inside `hk.transform`, makes a CNN.

    Args:
      name: a key of MIN_PIXELS.
      linear: makes the fully connected layer.
      with_last: whether it has that layer.
      dtype: a key of DTYPES, in which it computes. Parameters and features are float32.
    """
    make: Callable[[], CNN]
    if name in _PLAIN:
        make = functools.partial(_plain_cnn, name, linear, with_last)
    else:
        make = functools.partial(_ImpalaResNet, linear, with_last, name="torso")
    return make if dtype == "float32" else lambda: _computing_in(DTYPES[dtype], make())


def _computing_in(dtype: Any, cnn: CNN) -> CNN:
    """Returns a CNN of float32 parameters that computes in `dtype`: mixed precision.

    As Micikevicius et al. 2018, https://arxiv.org/abs/1710.03740; without a scaled loss, for
    bfloat16 has float32's range.
    """

    def create(make: Any, shape: Any, _: Any, init: Any, context: Any) -> Any:
        return make(shape, jnp.float32, init)

    def get(make: Any, value: Any, context: Any) -> Any:
        return make(value).astype(dtype)

    def apply(x: jax.Array) -> jax.Array:
        with hk.custom_creator(create), hk.custom_getter(get):
            return cnn(x.astype(dtype)).astype(jnp.float32)

    return apply


def _plain_cnn(name: str, linear: MakeLayer, with_last: bool) -> CNN:
    convolutions, features = _PLAIN[name]
    layers: list[Any] = []
    w_init = scaled(2**0.5)  # a relu halves the variance (He et al. 2015, arXiv:1502.01852)
    for convolution in convolutions:
        if name == "small_cnn":
            layers += [SmallConv2D(*convolution, w_init=w_init, name="conv2_d"), _relu]
        else:
            layers += [Conv2D(*convolution, padding="VALID", w_init=w_init), _relu]
    layers.append(hk.Flatten())
    if with_last:
        layers += [linear(features, w_init=w_init), _relu]
    return hk.Sequential(layers, name="torso")


class _ImpalaResNet(hk.Module):
    """The deep network of IMPALA without its LSTM, https://arxiv.org/abs/1802.01561 (figure 3)."""

    def __init__(self, linear: MakeLayer, with_last: bool, name: str):
        super().__init__(name=name)
        self._linear = linear
        self._with_last = with_last

    def __call__(self, x: jax.Array) -> jax.Array:
        for channels in (16, 32, 32):
            x = Conv2D(channels, 3)(x)
            x = max_pool(x)
            for _ in range(2):
                y = Conv2D(channels, 3)(_relu(x))
                x = x + Conv2D(channels, 3)(_relu(y))
        x = hk.Flatten()(_relu(x))
        return _relu(self._linear(_RESNET_FEATURES)(x)) if self._with_last else x
