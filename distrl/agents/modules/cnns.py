"""Convolutional networks for images, float32 [N, H, W, C] to features [N, F]."""

import functools
from collections.abc import Callable
from typing import Any

import haiku as hk
import jax
import jax.numpy as jnp

from distrl.agents.modules.convolution import Conv2D

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
            layers += [_SmallConv2D(*convolution, w_init, name="conv2_d"), _relu]
        else:
            layers += [Conv2D(*convolution, padding="VALID", w_init=w_init), _relu]
    layers.append(hk.Flatten())
    if with_last:
        layers += [linear(features, w_init=w_init), _relu]
    return hk.Sequential(layers, name="torso")


class _SmallConv2D(hk.Module):
    """`hk.Conv2D` with padding "SAME", as one matrix product of each pixel's neighbourhood.

    For images of a few pixels that is as fast, and compiles to loops that stay fast on a CPU, where
    XLA's gradients of convolutions in a loop take some ten times as long.
    """

    def __init__(
        self,
        channels: int,
        kernel: int,
        stride: int,
        w_init: hk.initializers.Initializer,
        name: str,
    ):
        super().__init__(name=name)
        self._channels, self._kernel, self._stride = channels, kernel, stride
        self._w_init = w_init

    def __call__(self, x: jax.Array) -> jax.Array:
        kernel, stride, channels = self._kernel, self._stride, self._channels
        sizes = [-(-side // stride) for side in x.shape[1:3]]
        pads = [
            max((size - 1) * stride + kernel - side, 0)
            for size, side in zip(sizes, x.shape[1:3], strict=True)
        ]
        x = jnp.pad(x, ((0, 0), *((pad // 2, pad - pad // 2) for pad in pads), (0, 0)))
        height, width = ((size - 1) * stride + 1 for size in sizes)
        near = [
            x[:, row : row + height : stride, column : column + width : stride]
            for row in range(kernel)
            for column in range(kernel)
        ]
        shape = (kernel, kernel, x.shape[-1], channels)
        w = hk.get_parameter("w", shape, x.dtype, self._w_init)
        b = hk.get_parameter("b", (channels,), x.dtype, jnp.zeros)
        return jnp.concatenate(near, axis=-1) @ w.reshape(-1, channels) + b


def _max_pool(x: jax.Array) -> jax.Array:
    """Returns `hk.max_pool` of 3 by 3 pixels with a stride of 2 and padding "SAME".

    XLA computes that pixel by pixel on CPUs, and its gradient, too. Where several pixels are the
    largest, they share the gradient here.
    """
    for axis in (1, 2):
        size = x.shape[axis]
        last = (size - 1) // 2 * 2  # where the last window begins, in the padded rows
        pad = max(last + 3 - size, 0)
        pads = [(0, 0)] * 4
        pads[axis] = (pad // 2, pad - pad // 2)
        x = jnp.pad(x, pads, constant_values=-jnp.inf)
        pixels = [jax.lax.slice_in_dim(x, at, at + last + 1, 2, axis) for at in range(3)]
        x = functools.reduce(jnp.maximum, pixels)
    return x


class _ImpalaResNet(hk.Module):
    """The deep network of IMPALA without its LSTM, https://arxiv.org/abs/1802.01561 (figure 3)."""

    def __init__(self, linear: MakeLayer, with_last: bool, name: str):
        super().__init__(name=name)
        self._linear = linear
        self._with_last = with_last

    def __call__(self, x: jax.Array) -> jax.Array:
        for channels in (16, 32, 32):
            x = Conv2D(channels, 3)(x)
            x = _max_pool(x)
            for _ in range(2):
                y = Conv2D(channels, 3)(_relu(x))
                x = x + Conv2D(channels, 3)(_relu(y))
        x = hk.Flatten()(_relu(x))
        return _relu(self._linear(_RESNET_FEATURES)(x)) if self._with_last else x
