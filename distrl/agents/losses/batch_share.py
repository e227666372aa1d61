"""Shares of a batch whose gradients are computed apart, as losses see them while they are traced.

The gradients of a batch are the mean of its shares' gradients, weighted with their numbers of
unrolls, provided that each share uses the whole batch's number of real transitions (in means),
least probability (in importance weights) and random draws. In a share, the functions below give
these; elsewhere they do what their names say.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from distrl.types import Nest


class Share(NamedTuple):
    """The unrolls `start` to `start + size` of a batch."""

    size: int
    whole: int  # unrolls of the batch
    start: Any  # int32 scalar
    num_real: Any  # float32 scalar, transitions that the loss on the batch is a mean over
    min_probability: Any  # float32 scalar, the least one of the batch


_share: contextvars.ContextVar[Share | None] = contextvars.ContextVar("share", default=None)


@contextlib.contextmanager
def share_of_batch(share: Share) -> Iterator[None]:
    """While entered, losses are traced as those of a share."""
    token = _share.set(share)
    try:
        yield
    finally:
        _share.reset(token)


def count_real(real: jax.Array) -> jax.Array:
    """Returns the divisor of a mean over `real`, bool [T, B]; at least 1.

    In a share it is the batch's count, times the share's part of the batch: means of shares, again
    averaged over the unrolls, are then those of the batch, however unequal the shares' counts are.
    """
    share = _share.get()
    if share is None:
        return jnp.maximum(jnp.sum(real), 1)
    return jnp.maximum(share.num_real, 1) * (share.size / share.whole)


def min_probability(probability: jax.Array) -> jax.Array:
    """Returns the least of the probabilities, [B], with which a batch's unrolls were sampled."""
    share = _share.get()
    return jnp.min(probability) if share is None else share.min_probability


def draw(
    sample: Callable[[jax.Array, Sequence[int]], jax.Array],
    rng: jax.Array,
    shape: Sequence[int],
    axis: int = 1,
) -> jax.Array:
    """Returns `sample(rng, shape)`; in a share the part of the whole batch's draw.

    Args:
      sample: for example `jax.random.normal`.
      rng: raw key.
      shape: shape of the draw.
      axis: its batch axis, in learning.
    """
    share = _share.get()
    if share is None:
        return sample(rng, shape)
    whole = (*shape[:axis], share.whole, *shape[axis + 1 :])
    return jax.lax.dynamic_slice_in_dim(sample(rng, whole), share.start, share.size, axis)


def weighted_mean(nests: Sequence[Nest], weights: Sequence[float]) -> Nest:
    """Returns the weighted mean of nests of one structure. Args: weights: they sum to 1."""

    def mean(*leaves: jax.Array) -> jax.Array:
        total = sum(jnp.asarray(leaf) * weight for leaf, weight in zip(leaves, weights))
        return jnp.asarray(total).astype(leaves[0].dtype)

    return jax.tree.map(mean, *nests)
