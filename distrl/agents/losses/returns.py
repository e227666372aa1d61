"""Returns and advantages over windows that may hold the ends of episodes anywhere.

The transition into LAST bootstraps from the value at LAST (of the true final observation) times the
discount there: 0 at a true end, 1 at a time limit. Nothing after LAST reaches anything before it.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from distrl.agents.losses.rlax_import import rlax
from distrl.types import StepType


def gae(
    step_type: jax.typing.ArrayLike,
    reward: jax.typing.ArrayLike,
    discount: jax.typing.ArrayLike,
    value: jax.typing.ArrayLike,
    lambda_: float,
) -> jax.Array:
    """Returns generalised advantages.

    Schulman et al. 2016, https://arxiv.org/abs/1506.02438.

    Args:
      step_type: [T + 1, B], StepType.
      reward: float32 [T + 1, B], the reward for the action before; the first row is not used.
      discount: float32 [T + 1, B], gamma included; the first row is not used.
      value: float32 [T + 1, B], the value of each step.
      lambda_: in [0, 1]. 1: the rewards up to the end of the episode or window, and the value
        there; 0: one step.

    Returns:
      float32 [T, B]; 0 at transitions that are not real. No gradient flows.
    """
    step_type, reward, discount, value = (
        jnp.asarray(x) for x in (step_type, reward, discount, value)
    )
    # With a lambda of 0 the transition into LAST bootstraps, and takes nothing from after it.
    mixing = jnp.where(step_type[1:] == StepType.LAST, 0.0, lambda_)

    def one_stream(*arrays: jax.Array) -> jax.Array:
        return rlax.truncated_generalized_advantage_estimation(*arrays)

    columns = (reward[1:], discount[1:], mixing, value)
    advantage = jax.vmap(one_stream, in_axes=1, out_axes=1)(*columns)
    real = step_type[:-1] != StepType.LAST
    return jax.lax.stop_gradient(jnp.where(real, advantage, 0.0))


def n_step_targets(
    step_type: jax.typing.ArrayLike,
    reward: jax.typing.ArrayLike,
    discount: jax.typing.ArrayLike,
    value: jax.typing.ArrayLike,
    n_step: int,
) -> jax.Array:
    """Returns n-step returns.

    The target of transition t sums rewards up to step t + n, the episode's LAST or the window's
    end, whichever comes first, and bootstraps from the value there times the discount there.

    Args:
      step_type: [T + 1, B], StepType.
      reward: float32 [T + 1, B], the reward for the action before; the first row is not used.
      discount: float32 [T + 1, B], gamma included; the first row is not used.
      value: float32 [T + 1, B], the value of each step; the first row is not used.
      n_step: 1 or more.

    Returns:
      float32 [T, B]; without meaning at transitions that are not real. No gradient flows.
    """
    step_type, reward, discount, value = (
        jnp.asarray(x) for x in (step_type, reward, discount, value)
    )
    continues = jnp.asarray(step_type[1:] != StepType.LAST, jnp.float32)

    def one_stream(*arrays: jax.Array) -> jax.Array:
        # RLax's lambda of 0 bootstraps there, and takes nothing from after it.
        returns = rlax.n_step_bootstrapped_returns(*arrays[:3], n_step, arrays[3])
        return jax.lax.stop_gradient(returns)

    columns = (reward[1:], discount[1:], value[1:], continues)
    return jax.vmap(one_stream, in_axes=1, out_axes=1)(*columns)


class Bootstrap(NamedTuple):
    """Parts of n-step returns, all [T, B]: `reward + factor * (value at step end)`."""

    reward: jax.Array  # the sum of rewards
    factor: jax.Array  # 0 at a true end
    end: jax.Array  # int32


def n_step_bootstrap(
    step_type: jax.typing.ArrayLike,
    reward: jax.typing.ArrayLike,
    discount: jax.typing.ArrayLike,
    n_step: int,
) -> Bootstrap:
    """Returns the parts of `n_step_targets`, for values that are distributions."""
    step_type = jnp.asarray(step_type)
    zeros, ones = jnp.zeros(step_type.shape), jnp.ones(step_type.shape)
    steps = jnp.arange(len(ones))[:, None] * ones
    return Bootstrap(
        n_step_targets(step_type, reward, discount, zeros, n_step),
        n_step_targets(step_type, zeros, discount, ones, n_step),
        jnp.asarray(n_step_targets(step_type, zeros, ones, steps, n_step), jnp.int32),
    )
