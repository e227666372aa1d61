"""An agent's part in prioritized replay: the weights of samples, and new priorities.

Schaul et al. 2016, https://arxiv.org/abs/1511.05952.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from distrl.agents.losses.batch_share import min_probability
from distrl.errors import SpecError

PRIORITY_ETA = 0.9
"""Share of the maximum error in an unroll's priority; the rest is the mean's (Kapturowski et al.
2019, R2D2, https://openreview.net/forum?id=r1lyTjAqYX)."""

MIN_PRIORITY = 1e-6
"""An unroll that is learned without an error may be sampled again (epsilon of Schaul et al.)."""


def importance_weights(probability: jax.typing.ArrayLike, exponent: float) -> jax.Array:
    """Returns the unrolls' weights, `[B]`, at most 1, against the bias of a prioritized table.

    Args:
      probability: float32 `[B]`, the probability with which each was sampled.
      exponent: Schaul's beta; 0: no correction, 1: a full one. The batch's least likely unroll has
        the weight 1; so have all unrolls of a uniform table.
    """
    probability = jnp.asarray(probability)
    return jnp.power(probability / min_probability(probability), -exponent)


def check_priorities(logs: Mapping[str, Any], name: str, num_unrolls: int) -> None:
    """Raises SpecError if an agent's new priorities are not one number for each unroll.

    Args:
      logs: the agent's, perhaps traced.
      name: the log with the priorities, if there are any.
      num_unrolls: unrolls of the batch, or of the share of it.
    """
    shape = jnp.shape(logs[name]) if name in logs else (num_unrolls,)
    if shape != (num_unrolls,):
        raise SpecError(
            f"the agent's log {name!r} must be a number for each unroll, of shape "
            f"[{num_unrolls}], got {list(shape)}"
        )


def unroll_priorities(error: jax.Array, real: jax.Array) -> jax.Array:
    """Returns new priorities of unrolls, `[B]`, for `distrl.agents.agent.PRIORITIES`.

    They are `eta * max + (1 - eta) * mean` of the absolute errors of an unroll's real transitions,
    for a single transition its absolute error, and at least `MIN_PRIORITY`; 0, never sampled again,
    if none is real.

    Args:
      error: float32 `[T, B]`, temporal differences.
      real: bool `[T, B]`.
    """
    error = jnp.where(real, jnp.abs(error), 0)
    mean = jnp.sum(error, axis=0) / jnp.maximum(jnp.sum(real, axis=0), 1)
    priority = PRIORITY_ETA * jnp.max(error, axis=0) + (1 - PRIORITY_ETA) * mean
    return jnp.where(jnp.any(real, axis=0), jnp.maximum(priority, MIN_PRIORITY), 0)
