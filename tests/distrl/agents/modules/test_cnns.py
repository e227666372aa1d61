"""The layers of CNNs, against Haiku's own."""

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from distrl.agents.modules import cnns


@pytest.mark.parametrize("sides", [(84, 84), (11, 6), (3, 2), (1, 1)])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_the_largest_pixels_and_their_gradients_are_haikus(sides, dtype):
    def haikus(x):
        return hk.max_pool(x, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")

    rng = np.random.default_rng(0)
    shape = (1, *sides, 1)
    # No two are alike in float32; in bfloat16, they are for images of a few pixels.
    x = jnp.asarray(rng.permutation(np.prod(shape)).reshape(shape) - 50, dtype)
    (expected, theirs), (result, ours) = (jax.vjp(pool, x) for pool in (haikus, cnns._max_pool))
    assert result.dtype == dtype
    np.testing.assert_array_equal(result, expected)
    if dtype == jnp.float32 or np.prod(shape) < 256:
        dy = jnp.asarray(rng.integers(-4, 5, expected.shape), dtype)
        np.testing.assert_array_equal(ours(dy)[0], theirs(dy)[0])
