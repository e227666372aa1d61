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


def noisy_action(
    rng: jax.Array, action: jax.Array, noise: float, epsilon: jax.typing.ArrayLike
) -> jax.Array:
    """With probability epsilon any action, all alike; otherwise `action` plus Normal noise.

    Args:
      rng: raw key.
      action: [..., D], in [-1, 1].
      noise: the Normals' standard deviation, of each element.
      epsilon: in [0, 1]; a scalar, or [...].

    Returns:
      float32 [..., D], clipped to [-1, 1].
    """
    which, whether, how = jax.random.split(rng, 3)
    uniform = jax.random.uniform(which, action.shape, minval=-1.0, maxval=1.0)
    explore = jax.random.uniform(whether, action.shape[:-1]) < epsilon
    near = action + noise * jax.random.normal(how, action.shape)
    return jnp.where(explore[..., None], uniform, jnp.clip(near, -1, 1))
