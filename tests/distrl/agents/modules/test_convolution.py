"""Convolutions, against Haiku's and JAX's own."""

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from distrl.agents.modules import convolution

KEY = jax.random.PRNGKey(0)
# Channels, kernel, stride, padding, and the input's sides: of Atari's layers, and such as leave
# pixels over, have kernels of no whole number of strides, or more stride than kernel.
SHAPES = [
    (32, 8, 4, "VALID", (84, 84)),
    (6, 4, 2, "VALID", (20, 13)),
    (6, 3, 1, "VALID", (9, 5)),
    (6, 3, 1, "SAME", (9, 5)),
    (6, 4, 1, "SAME", (9, 5)),
    (6, 8, 4, "VALID", (19, 12)),
    (6, 5, 2, "VALID", (12, 9)),
    (6, 5, 3, "VALID", (11, 12)),
    (6, 2, 3, "VALID", (11, 9)),
    (6, 1, 1, "VALID", (3, 4)),
]


def of_numbers(shape, dtype=jnp.float32):
    rng = np.random.default_rng(sum(shape))
    return jnp.asarray(rng.integers(-4, 5, shape), dtype)


@pytest.mark.parametrize(("channels", "kernel", "stride", "padding", "sides"), SHAPES)
def test_the_gradient_of_the_input_is_jaxs(channels, kernel, stride, padding, sides):
    x, w = of_numbers((2, *sides, 3)), of_numbers((kernel, kernel, 3, channels))
    y, pull = jax.vjp(lambda x: convolution._convolve(x, w, stride, padding), x)
    dy = of_numbers(y.shape)
    (expected,) = pull(dy)
    result = convolution._gradient_of_input(x.shape, stride, padding, dy, w)
    np.testing.assert_array_equal(result, expected)  # of integers: exact in any order


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize(("channels", "kernel", "stride", "padding", "sides"), SHAPES[1:6])
def test_parameters_results_and_gradients_are_haikus(
    channels, kernel, stride, padding, sides, dtype
):
    x = of_numbers((2, *sides, 3), dtype)

    def both(module):
        network = hk.transform(lambda x: module(channels, kernel, stride, padding=padding)(x))
        params = network.init(KEY, x)

        @jax.jit
        def loss(params, x):
            return jnp.sum(jnp.square(network.apply(params, None, x).astype(jnp.float32)))

        return params, *jax.value_and_grad(loss, (0, 1))(params, x)

    (params, *expected), (other_params, *results) = both(hk.Conv2D), both(convolution.Conv2D)
    params, other_params = ({"conv": next(iter(p.values()))} for p in (params, other_params))
    jax.tree.map(np.testing.assert_array_equal, params, other_params)
    for one, other in zip(*map(jax.tree.leaves, (expected, results)), strict=True):
        assert one.dtype == other.dtype
        one, other = (np.asarray(value, np.float32) for value in (one, other))
        bound = 1e-6 if dtype == jnp.float32 else 2e-2
        assert np.linalg.norm(one - other) <= bound * np.linalg.norm(one)


@pytest.mark.parametrize("sides", [(84, 84), (11, 6), (3, 2), (1, 1)])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_the_largest_pixels_and_their_gradients_are_haikus(sides, dtype):
    def haikus(x):
        return hk.max_pool(x, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")

    rng = np.random.default_rng(0)
    shape = (1, *sides, 1)
    # No two are alike in float32; in bfloat16, they are for images of a few pixels.
    x = jnp.asarray(rng.permutation(np.prod(shape)).reshape(shape) - 50, dtype)
    pools = haikus, convolution.max_pool
    (expected, theirs), (result, ours) = (jax.vjp(pool, x) for pool in pools)
    assert result.dtype == dtype
    np.testing.assert_array_equal(result, expected)
    if dtype == jnp.float32 or np.prod(shape) < 256:
        dy = jnp.asarray(rng.integers(-4, 5, expected.shape), dtype)
        np.testing.assert_array_equal(ours(dy)[0], theirs(dy)[0])
