"""Convolutions and pooling that are fast on CPUs, as are their gradients."""

import functools
from typing import Any

import haiku as hk
import jax
import jax.numpy as jnp

_DIMENSIONS = ("NHWC", "HWIO", "NHWC")


class Conv2D(hk.Module):
    """`hk.Conv2D`, with the same parameters and results, but for the gradients' rounding."""

    def __init__(
        self,
        channels: int,
        kernel: int,
        stride: int = 1,
        padding: str = "SAME",
        w_init: hk.initializers.Initializer | None = None,
        name: str = "conv2_d",
    ):
        """Args:
        channels: of the output.
        kernel, stride: pixels of each side.
        padding: "VALID", or with a stride of 1 "SAME".
        w_init: see `hk.Conv2D`.
        name: of the module.
        """
        super().__init__(name=name)
        self._channels, self._kernel, self._stride = channels, kernel, stride
        self._padding, self._w_init = padding, w_init

    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns [N, H, W, channels] for [N, H, W, C]."""
        shape = (self._kernel, self._kernel, x.shape[-1], self._channels)
        fan_in = self._kernel**2 * x.shape[-1]
        w_init = self._w_init or hk.initializers.TruncatedNormal(fan_in**-0.5)
        w = hk.get_parameter("w", shape, x.dtype, w_init)
        b = hk.get_parameter("b", shape[-1:], x.dtype, jnp.zeros)
        return self._convolve(x, w) + b

    def _convolve(self, x: jax.Array, w: jax.Array) -> jax.Array:
        assert self._padding == "VALID" or self._stride == 1
        convolve = _convolve if x.dtype == jnp.float32 else _convolve_fast
        return convolve(x, w, self._stride, self._padding)


class SmallConv2D(Conv2D):
    """With padding "SAME" and any stride, as one matrix product of each pixel's neighbourhood.

    For images of a few pixels that is as fast, and compiles to loops that stay fast on a CPU, where
    XLA's gradients of convolutions in a loop take some ten times as long.
    """

    def _convolve(self, x: jax.Array, w: jax.Array) -> jax.Array:
        kernel, stride = self._kernel, self._stride
        sides, window = x.shape[1:3], (kernel, kernel)
        pads = jax.lax.padtype_to_pads(sides, window, (stride, stride), "SAME")
        x = jnp.pad(x, ((0, 0), *pads, (0, 0)))
        height, width = ((side - 1) // stride * stride + 1 for side in sides)
        near = [
            x[:, row : row + height : stride, column : column + width : stride]
            for row in range(kernel)
            for column in range(kernel)
        ]
        return jnp.concatenate(near, axis=-1) @ w.reshape(-1, w.shape[-1])


def max_pool(x: jax.Array) -> jax.Array:
    """Returns `hk.max_pool` of 3 by 3 pixels with a stride of 2 and padding "SAME".

    XLA computes that pixel by pixel on CPUs, and its gradient, too. Where several pixels are the
    largest, they share the gradient here.

    Args:
      x: [N, H, W, C].
    """
    pads = jax.lax.padtype_to_pads(x.shape[1:3], (3, 3), (2, 2), "SAME")
    x = jnp.pad(x, ((0, 0), *pads, (0, 0)), constant_values=-jnp.inf)
    for axis in (1, 2):
        ends = range(x.shape[axis] - 2, x.shape[axis] + 1)
        pixels = [jax.lax.slice_in_dim(x, at, end, 2, axis) for at, end in enumerate(ends)]
        x = functools.reduce(jnp.maximum, pixels)
    return x


def _convolve(x: jax.Array, w: jax.Array, stride: int, padding: Any) -> jax.Array:
    return jax.lax.conv_general_dilated(
        x, w, (stride, stride), padding, dimension_numbers=_DIMENSIONS
    )


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _convolve_fast(x: jax.Array, w: jax.Array, stride: int, padding: str) -> jax.Array:
    """As `_convolve`, with `_gradient_of_input` on CPUs."""
    return _convolve(x, w, stride, padding)


def _forward(x: jax.Array, w: jax.Array, stride: int, padding: str) -> Any:
    return _convolve(x, w, stride, padding), (x, w)


def _backward(stride: int, padding: str, kept: Any, dy: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, w = kept
    (dw,) = jax.vjp(lambda w: _convolve(x, w, stride, padding), w)[1](dy)

    def usual(dy: jax.Array, w: jax.Array) -> jax.Array:
        return jax.vjp(lambda x: _convolve(x, w, stride, padding), x)[1](dy)[0]

    fast = functools.partial(_gradient_of_input, x.shape, stride, padding)
    return jax.lax.platform_dependent(dy, w, cpu=fast, default=usual), dw


_convolve_fast.defvjp(_forward, _backward)


def _gradient_of_input(
    shape: tuple[int, ...], stride: int, padding: str, dy: jax.Array, w: jax.Array
) -> jax.Array:
    """Returns the gradient of a convolution's input, as another plain convolution.

    JAX's own is one of an input with holes or with a kernel that is read backwards: XLA does not
    give it to oneDNN, but computes it in float32, in four to six times the time.

    The pixels at each place within a stride depend on a kernel of their own, of every stride-th
    weight: all these kernels together are one, with as many channels for each place.

    Args:
      shape: of the input, [N, H, W, C].
      stride, padding: the convolution's.
      dy: the gradient of its output.
      w: its kernel.
    """
    kernel, _, channels, outputs = w.shape
    near = -(-kernel // stride)  # outputs that a pixel affects, along each side
    w = jnp.pad(w, ((0, near * stride - kernel),) * 2 + ((0, 0),) * 2)
    w = w.reshape(near, stride, near, stride, channels, outputs)[::-1, :, ::-1]
    w = w.transpose(0, 2, 5, 1, 3, 4).reshape(near, near, outputs, stride**2 * channels)
    if padding == "SAME":
        pads = [((near - 1) // 2 + (near - 1) % 2, (near - 1) // 2)] * 2
    else:
        pads = [(near - 1, near - 1)] * 2
    dx = _convolve(dy, w, 1, pads)
    n, height, width, _ = dx.shape
    dx = dx.reshape(n, height, width, stride, stride, channels).transpose(0, 1, 3, 2, 4, 5)
    dx = dx.reshape(n, height * stride, width * stride, channels)
    return _fitted(dx, shape)


def _fitted(x: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Returns [N, H, W, C], cut or filled up with zeros at the ends of H and W."""
    x = x[:, : shape[1], : shape[2]]
    rest = [(0, wanted - size) for wanted, size in zip(shape, x.shape, strict=True)]
    return jnp.pad(x, rest) if any(map(any, rest)) else x
