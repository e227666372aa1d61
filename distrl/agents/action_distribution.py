"""The distribution that a policy's actions are drawn from, for whoever uses a trained policy."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from distrl.agents.modules.distributions import Distribution
from distrl.types import Nest


class ActionDistribution(NamedTuple):
    """A distribution over actions, and its parameters.

    Attributes:
      log_prob: actions [B, ...] -> their log-probabilities, float32 [B]; densities in the action's
        own units for continuous ones.
      parameters: by name, [B, ...].
    """

    log_prob: Callable[[Any], jax.Array]
    parameters: dict[str, jax.Array]


def of_policy(distribution: Distribution, policy: Nest, value: jax.Array) -> ActionDistribution:
    """Returns the action distribution of an actor-critic.

    Its parameters are `value`, and `logits` or `mean` and `std`, both in the action's units; for an
    action in parts, those of each part, such as "move.logits".

    Args:
      distribution: the network's distribution.
      policy: the distribution's parameters, [B, *].
      value: [B].
    """
    return ActionDistribution(
        lambda action: distribution.log_prob(policy, action),
        {**distribution.named_parameters(policy), "value": value},
    )


def epsilon_greedy(
    values: jax.Array, epsilon: jax.typing.ArrayLike, legal: jax.Array | None
) -> ActionDistribution:
    """Returns the action distribution of action values: the best (first) action, but for epsilon.

    Its parameters are `values` and `probabilities`.

    Args:
      values: [B, num_actions].
      epsilon: in [0, 1]; a scalar, or [B].
      legal: bool [B, num_actions]; None: all.
    """
    if legal is None:
        legal = jnp.ones(values.shape, bool)
    best = jnp.argmax(jnp.where(legal, values, -jnp.inf), axis=-1)
    greedy = jax.nn.one_hot(best, values.shape[-1])
    random = legal / jnp.sum(legal, axis=-1, keepdims=True)
    share = jnp.asarray(epsilon)[..., None]
    probabilities = share * random + (1 - share) * greedy

    def log_prob(action: jax.Array) -> jax.Array:
        index = jnp.asarray(action)[..., None]
        return jnp.log(jnp.take_along_axis(probabilities, index, axis=-1)[..., 0])

    return ActionDistribution(log_prob, {"values": values, "probabilities": probabilities})
