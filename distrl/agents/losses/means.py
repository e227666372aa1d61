"""Means over the real transitions of a batch: those that do not start at LAST."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from distrl.agents.losses.batch_share import count_real


def mean_over(real: jax.Array) -> Callable[[jax.Array], jax.Array]:
    """Returns a function: the mean of x [T, B] over `real`, bool [T, B]; 0 if none is real.

    In a share of a batch it is scaled, so that the shares' mean is the batch's: see `count_real`.
    """
    count = count_real(real)
    return lambda x: jnp.sum(jnp.where(real, x, 0)) / count


NOISE = 1e-2
"""Standard deviation of advantages, as a share of the targets' root mean square, below which they
are not scaled up to 1. Rounding is some 1e-6 of the values, and the error of a network that fits
constant returns was 4e-4 to 4e-3 of them (PPO on Taxi-v3, where every episode earned -200)."""


def normalize(advantage: jax.Array, target: jax.Array, real: jax.Array) -> jax.Array:
    """Returns advantages with mean 0 and a standard deviation of at most 1.

    The deviation is 1, unless all actions are about equally good: if every episode earns the same,
    advantages are rounding and the value network's error of fit, which are proportional to the
    values. Scaled to 1, they would move the policy at random until it does the same everywhere.
    So the divisor is the advantages' standard deviation, but at least NOISE times the targets'
    root mean square.

    Args:
      advantage: float32 [T, B].
      target: float32 [T, B], the values that are learned, in the same units.
      real: bool [T, B], the real transitions: the others do not count, and get 0.
    """
    mean = mean_over(real)
    centred = advantage - mean(advantage)
    floor = NOISE * jnp.sqrt(mean(jnp.square(target)))
    divisor = jnp.maximum(jnp.sqrt(mean(jnp.square(centred))), floor) + 1e-8
    return jnp.where(real, centred / divisor, 0.0)
