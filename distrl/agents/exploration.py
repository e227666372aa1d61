"""How agents that learn values explore: small pure functions and their settings."""

import dataclasses

import jax
import jax.numpy as jnp

from distrl.agents.settings import check_count, check_number


@dataclasses.dataclass(frozen=True)
class EpsilonSchedule:
    """Falls linearly from `start` to `end`, over learner updates, and stays there.

    Streams may explore unlike each other (Ape-X: Horgan et al. 2018,
    https://arxiv.org/abs/1803.00933, has start = end = 0.4 and spread = 7): stream i acts with
    `epsilon ** (1 + spread * share)`, its share in [0, 1) being `stream_shares`. Alike where
    epsilon is 0 or 1.

    Attributes:
      start: before the first update, in [0, 1].
      end: in [0, 1].
      updates: after so many it is `end`.
      spread: 0 or more; 0: all streams alike.
    """

    start: float = 1.0
    end: float = 0.01
    updates: int = 3_000
    spread: float = 0.0

    def __post_init__(self) -> None:
        for field in ("start", "end"):
            check_number(self, field, lambda x: 0 <= x <= 1, "in [0, 1]", "agent.epsilon")
        check_count(self, "updates", "agent.epsilon")
        check_number(self, "spread", lambda x: x >= 0, "of at least 0", "agent.epsilon")

    def __call__(self, updates: jax.typing.ArrayLike) -> jax.Array:
        """float32 scalar, after so many updates."""
        share = jnp.minimum(jnp.asarray(updates, jnp.float32) / self.updates, 1.0)
        return self.start + (self.end - self.start) * share

    def of_streams(self, epsilon: jax.Array, stream_ids: jax.Array) -> jax.Array:
        """Each stream's epsilon.

        Args:
          epsilon: float32 scalar, what the schedule has come to.
          stream_ids: int32 [B]; not looked at where all streams are alike.

        Returns:
          float32 [B]; a scalar where all streams are alike.
        """
        if self.spread == 0:
            return epsilon
        return epsilon ** (1 + self.spread * stream_shares(stream_ids))


def stream_shares(stream_ids: jax.typing.ArrayLike) -> jax.Array:
    """Each id's radical inverse in base 2 (van der Corput): its binary digits behind the point.

    0, 1/2, 1/4, 3/4, 1/8, ...: any run of ids is spread evenly over [0, 1), so that nobody needs to
    know how many streams there are, or which of them an actor has.

    Args:
      stream_ids: integers, 0 or more, of any shape; their lowest 24 bits count.

    Returns:
      float32 in [0, 1), of the same shape; exact.
    """
    ids = jnp.asarray(stream_ids, jnp.uint32)[..., None]
    bits = jnp.arange(24, dtype=jnp.uint32)
    return jnp.sum((ids >> bits & 1) * 0.5 ** (bits + 1.0), axis=-1)


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
