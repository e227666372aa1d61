"""Means over the real transitions of a batch: those that do not start at LAST."""

from collections.abc import Callable

import jax
import jax.numpy as jnp


def mean_over(real: jax.Array) -> Callable[[jax.Array], jax.Array]:
    """Returns a function: the mean of x [T, B] over `real`, bool [T, B]; 0 if none is real."""
    count = jnp.maximum(jnp.sum(real), 1)
    return lambda x: jnp.sum(jnp.where(real, x, 0)) / count


def normalize(x: jax.Array, real: jax.Array) -> jax.Array:
    """Returns `x` [T, B] with mean 0 and standard deviation 1 over `real`, and 0 elsewhere."""
    mean = mean_over(real)
    centred = x - mean(x)
    return jnp.where(real, centred / (jnp.sqrt(mean(jnp.square(centred))) + 1e-8), 0.0)
