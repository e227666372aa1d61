"""Recurrent state within an unroll: resets at episodes' starts, and burn-in."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from distrl.types import TIME_FIELDS, Nest, State, Trajectory


def reset_unroll(
    core: Callable[[Nest, State], tuple[Nest, State]],
    inputs: Nest,
    is_first: jax.Array,
    state: State,
    initial_state: State,
) -> tuple[Nest, State]:
    """Scans a recurrent core over time, and resets it before the first step of each episode.

    Args:
      core: (inputs [B, ...], state [B, ...]) -> (outputs [B, ...], state [B, ...]).
      inputs: [T, B, ...].
      is_first: bool [T, B].
      state: [B, ...], before the first step.
      initial_state: [B, ...], the state before the first step of an episode.

    Returns:
      outputs [T, B, ...], and the state after the last step.
    """

    def body(state: State, xs: tuple[Nest, jax.Array]) -> tuple[State, Nest]:
        x, first = xs

        def reset(start: jax.Array, before: jax.Array) -> jax.Array:
            return jnp.where(first.reshape(-1, *[1] * (before.ndim - 1)), start, before)

        output, state = core(x, jax.tree.map(reset, initial_state, state))
        return state, output

    state, outputs = jax.lax.scan(body, state, (inputs, is_first))
    return outputs, state


def burn_in(
    unrolls: list[Callable[[Any, State], tuple[Any, State]]], batch: Trajectory, length: int
) -> tuple[Trajectory, list[State]]:
    """Brings the recurrent state of several networks up to date with a batch's first steps.

    Args:
      unrolls: one function for each network, (timestep [T, B], state [B]) -> (outputs, state [B]
        after the last step).
      batch: [T + 1, B, ...].
      length: number of steps; less than T.

    Returns:
      The batch without these steps, and each network's state before it. No gradient flows.
    """
    if length == 0:
        return batch, [batch.state for _ in unrolls]
    before = jax.tree.map(lambda x: x[:length], batch.timestep)
    states = [unroll(before, batch.state)[1] for unroll in unrolls]
    rest = {name: jax.tree.map(lambda x: x[length:], getattr(batch, name)) for name in TIME_FIELDS}
    return batch._replace(**rest), jax.lax.stop_gradient(states)
