"""How agents that learn values explore: small pure functions and their settings."""

import dataclasses

import jax
import jax.numpy as jnp

from distrl.agents.settings import check_count, check_number


@dataclasses.dataclass(frozen=True)
class EpsilonSchedule:
    """Falls linearly from `start` to `end`, over learner updates, and stays there.

    Attributes:
      start: before the first update, in [0, 1].
      end: in [0, 1].
      updates: after so many it is `end`.
    """

    start: float = 1.0
    end: float = 0.01
    updates: int = 3_000

    def __post_init__(self) -> None:
        for field in ("start", "end"):
            check_number(self, field, lambda x: 0 <= x <= 1, "in [0, 1]", "agent.epsilon")
        check_count(self, "updates", "agent.epsilon")

    def __call__(self, updates: jax.typing.ArrayLike) -> jax.Array:
        """float32 scalar, after so many updates."""
        share = jnp.minimum(jnp.asarray(updates, jnp.float32) / self.updates, 1.0)
        return self.start + (self.end - self.start) * share


def epsilon_greedy(rng: jax.Array, values: jax.Array, epsilon: jax.typing.ArrayLike) -> jax.Array:
    """With probability epsilon any action, all alike; otherwise the (first) one of most value.

    Args:
      rng: raw key.
      values: [..., num_actions].
      epsilon: in [0, 1]; a scalar, or [...].

    Returns:
      int32 [...].
    """
    which, whether = jax.random.split(rng)
    shape = values.shape[:-1]
    random = jax.random.randint(which, shape, 0, values.shape[-1])
    explore = jax.random.uniform(whether, shape) < epsilon
    return jnp.where(explore, random, jnp.argmax(values, axis=-1))
