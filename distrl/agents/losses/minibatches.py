"""Minibatches: shuffled parts of a batch of unrolls."""

import math
from typing import Any

import jax

from distrl.errors import ConfigError
from distrl.learner_group.devices import split
from distrl.types import TIME_FIELDS, Trajectory


def minibatch_size(minibatches: int, unroll_length: int, batch_size: int, whole: bool) -> int:
    """Returns the transitions of a minibatch, or its unrolls if they are shuffled whole.

    Args:
      minibatches: minibatches of a batch.
      unroll_length: transitions of an unroll.
      batch_size: unrolls of a batch.
      whole: unrolls are shuffled whole, for an agent with memory.

    Raises:
      ConfigError: `minibatches` does not divide the batch; with the arithmetic.
    """
    if whole:
        total, text = batch_size, f"{batch_size} unrolls are shuffled whole (it has memory)"
    else:
        total = unroll_length * batch_size
        text = f"{batch_size} unrolls of {unroll_length} transitions are {total} transitions"
    size, rest = divmod(total, minibatches)
    if rest:
        divisors = [n for n in range(1, total + 1) if total % n == 0]
        nearest = min(divisors, key=lambda n: abs(math.log(n / minibatches)))
        raise ConfigError(
            f"agent.minibatches={minibatches} does not divide a batch: {text}, "
            f"{total} / {minibatches} = {total / minibatches:.1f}; take "
            f"agent.minibatches={nearest} or another learner.batch_size"
        )
    return size


def take_minibatch(batch: Trajectory, index: jax.Array, whole: bool) -> Trajectory:
    """Returns a part of a batch [T, B, ...] that has a row for each transition.

    Args:
      batch: the batch.
      index: int [M]. Whole unrolls: each below B; else transitions, below T * B: the one of row t
        and unroll b is t * B + b.
      whole: unrolls are taken whole.

    Returns:
      [T, M, ...] or [1, M, ...]. The fields of whole unrolls, among them the recurrent state
      before the first step, go with their unrolls.
    """
    unrolls = batch.stream_id.shape[0]
    rows: Any = slice(None)
    columns = index
    if not whole:
        rows, columns = index[None] // unrolls, index % unrolls
    return Trajectory(
        **{
            name: split(jax.tree.map(lambda x: x[rows, columns], nest), axis=1)
            if name in TIME_FIELDS
            else split(jax.tree.map(lambda x: x[columns], nest))
            for name, nest in batch._asdict().items()
        }
    )
