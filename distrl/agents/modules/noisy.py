"""Noisy layers: networks that explore by noise of learned size on their weights.

Fortunato et al. 2018, https://arxiv.org/abs/1706.10295: factorised Gaussian noise.
"""

import haiku as hk
import jax
import jax.numpy as jnp

SIGMA = 0.5
"""Initial size of the noise, times the root of the number of inputs (the paper's sigma_0)."""


def factors(rng: jax.Array, inputs: int, outputs: int) -> tuple[jax.Array, jax.Array]:
    """Returns the noise of one layer, sign(x) sqrt(|x|) of Normals.

    The noise of weight [i, j] is the product of factor i and factor j, that of bias j is factor j.

    Args:
      rng: raw key.
      inputs: number of the layer's inputs.
      outputs: number of the layer's outputs.

    Returns:
      float32 [inputs] and [outputs], with mean 0.
    """
    normal = jax.random.normal(rng, (inputs + outputs,))
    both = jnp.sign(normal) * jnp.sqrt(jnp.abs(normal))
    return both[:inputs], both[inputs:]


class NoisyLinear(hk.Module):
    """`hk.Linear` with noise on its weights and biases, whose means are initialised as there.

    Applied with a key it draws one noise for all rows of its input; applied without one (None) it
    uses only its means.
    """

    def __init__(
        self,
        output_size: int,
        w_init: hk.initializers.Initializer | None = None,
        name: str | None = None,
    ):
        """Args:
        output_size: features of the output.
        w_init: initialiser of the weights' means; None: as in `hk.Linear`.
        name: name of the module.
        """
        super().__init__(name=name)
        self._size = output_size
        self._w_init = w_init

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps float32 [N, F] to [N, output_size]."""
        inputs, outputs = x.shape[-1], self._size
        sigma = hk.initializers.Constant(SIGMA / inputs**0.5)
        w_init = self._w_init or hk.initializers.TruncatedNormal(1 / inputs**0.5)
        w = hk.get_parameter("w", (inputs, outputs), init=w_init)
        b = hk.get_parameter("b", (outputs,), init=jnp.zeros)
        w_sigma = hk.get_parameter("w_sigma", (inputs, outputs), init=sigma)
        b_sigma = hk.get_parameter("b_sigma", (outputs,), init=sigma)
        rng = hk.maybe_next_rng_key()
        if rng is not None:
            before, after = factors(rng, inputs, outputs)
            w += w_sigma * before[:, None] * after
            b += b_sigma * after
        return x @ w + b
