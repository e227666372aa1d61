"""Recurrent state within an unroll: resets at episodes' starts, burn-in, and what that needs."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from distrl.errors import ConfigError
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


def learned_from(batch: Trajectory, length: int) -> Trajectory:
    """Returns a batch whose `timestep.step_type` lacks the burn-in's steps, to count the others."""
    step_type = batch.timestep.step_type[length:]
    return batch._replace(timestep=batch.timestep._replace(step_type=step_type))


def check_burn_in(length: int, network: Any) -> None:
    """Raises ConfigError for a burn-in of a network without memory.

    Args:
      length: the burn-in's number of steps.
      network: a `NetworkConfig`.
    """
    if length and network.core == "none":
        raise ConfigError(
            f"agent.burn_in={length} brings a memory up to date, and agent.network.core=none has "
            "none: it would only waste the first steps of each unroll; use 0, or "
            "agent.network.core=lstm"
        )


def check_unrolls(length: int, n_step: int, unroll_length: int) -> None:
    """Raises ConfigError if unrolls are shorter than what a loss takes from them.

    Args:
      length: the burn-in's number of steps.
      n_step: rewards that a return sums.
      unroll_length: transitions of an unroll.
    """
    if length >= unroll_length:
        raise ConfigError(
            f"agent.burn_in={length} leaves nothing to learn from in unrolls of "
            f"replay.unroll_length={unroll_length} transitions"
        )
    left = unroll_length - length
    if n_step > left:
        less = f" - agent.burn_in={length}" if length else ""
        raise ConfigError(
            f"agent.n_step={n_step} is more than replay.unroll_length={unroll_length}{less} = "
            f"{left}: no return could sum so many rewards; use agent.n_step of at most {left}, or "
            f"replay.unroll_length of at least {n_step + length}"
        )
