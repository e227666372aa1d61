"""Exploration of agents that learn values: small pure functions and their settings."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from distrl.agents.settings import check_count, check_number
from distrl.random_keys import derive


@dataclasses.dataclass(frozen=True)
class EpsilonSchedule:
    """Epsilon as a function of environment steps: falls linearly from `start` to `end`.

    Steps of all actors count, as their unrolls reach the table (see `Sample.inserts`; the steps
    between episodes count too): so the schedule depends neither on the number of actors nor, with
    `updates` None, on how fast the learner is. Actors get epsilon with the parameters.

    Streams may explore differently (Ape-X: Horgan et al. 2018, https://arxiv.org/abs/1803.00933,
    has start = end = 0.4 and spread = 7): stream i acts with `epsilon ** (1 + spread * share)`,
    where its share in [0, 1) is `stream_shares`. If epsilon is 0 or 1, all streams have it.

    Attributes:
      start: epsilon at first, in [0, 1].
      end: last epsilon, in [0, 1].
      updates: learner updates after which epsilon is `end`; None: `steps` are counted instead.
      spread: 0 or more; 0: all streams have the same epsilon.
      steps: environment steps after which epsilon is `end`; not used with `updates`.
    """

    start: float = 1.0
    end: float = 0.01
    updates: int | None = None
    spread: float = 0.0
    steps: int = 50_000

    def __post_init__(self) -> None:
        for field in ("start", "end"):
            check_number(self, field, lambda x: 0 <= x <= 1, "in [0, 1]", "agent.epsilon")
        for field in ("steps", "updates"):
            if getattr(self, field) is not None or field == "steps":
                check_count(self, field, "agent.epsilon")
        check_number(self, "spread", lambda x: x >= 0, "of at least 0", "agent.epsilon")

    def initial(self) -> jax.Array:
        """Returns epsilon before anything is counted, a float32 scalar."""
        return jnp.asarray(self.start, jnp.float32)

    def after_updates(self, updates: jax.Array, epsilon: jax.Array) -> jax.Array:
        """Returns epsilon after a number of updates: `epsilon` itself if steps are counted."""
        if self.updates is None:
            return epsilon
        share = jnp.minimum(jnp.asarray(updates, jnp.float32) / self.updates, 1.0)
        return self.start + (self.end - self.start) * share

    def in_params(self, params: dict[str, Any], env_steps: int) -> dict[str, Any]:
        """Returns the parameters with the epsilon after `env_steps`, if steps are counted.

        Args:
          params: with a float32 scalar "epsilon". They are not changed.
          env_steps: environment steps of the whole program so far.
        """
        if self.updates is not None:
            return params
        share = min(env_steps / self.steps, 1.0)
        return {**params, "epsilon": np.float32(self.start + (self.end - self.start) * share)}

    def of_streams(self, epsilon: jax.Array, stream_ids: jax.Array) -> jax.Array:
        """Returns each stream's epsilon.

        Args:
          epsilon: float32 scalar, the schedule's current value.
          stream_ids: int32 [B]; not used without a spread.

        Returns:
          float32 [B]; a scalar without a spread.
        """
        if self.spread == 0:
            return epsilon
        return epsilon ** (1 + self.spread * stream_shares(stream_ids))


def stream_shares(stream_ids: jax.typing.ArrayLike) -> jax.Array:
    """Returns each id's radical inverse in base 2 (van der Corput): its digits after the point.

    0, 1/2, 1/4, 3/4, 1/8, ...: any range of ids is spread evenly over [0, 1), so that the number of
    streams and an actor's part of them need not be known.

    Args:
      stream_ids: integers, 0 or more, of any shape; their lowest 24 bits count.

    Returns:
      float32 in [0, 1), of the same shape; exact.
    """
    ids = jnp.asarray(stream_ids, jnp.uint32)[..., None]
    bits = jnp.arange(24, dtype=jnp.uint32)
    return jnp.sum((ids >> bits & 1) * 0.5 ** (bits + 1.0), axis=-1)


def epsilon_greedy(rng: jax.Array, values: jax.Array, epsilon: jax.typing.ArrayLike) -> jax.Array:
    """Returns a uniformly random action with probability epsilon, otherwise the best (first) one.

    Args:
      rng: raw key.
      values: [..., num_actions].
      epsilon: in [0, 1]; a scalar, or [...].

    Returns:
      int32 [...].
    """
    shape = values.shape[:-1]
    random = jax.random.randint(derive(rng, "uniform"), shape, 0, values.shape[-1])
    explore = jax.random.uniform(derive(rng, "explore"), shape) < epsilon
    return jnp.where(explore, random, jnp.argmax(values, axis=-1))


def noisy_action(
    rng: jax.Array, action: jax.Array, noise: float, epsilon: jax.typing.ArrayLike
) -> jax.Array:
    """Returns a uniformly random action with probability epsilon, otherwise `action` plus noise.

    Args:
      rng: raw key.
      action: [..., D], in [-1, 1].
      noise: standard deviation of each element's Normal noise.
      epsilon: in [0, 1]; a scalar, or [...].

    Returns:
      float32 [..., D], clipped to [-1, 1].
    """
    uniform = jax.random.uniform(derive(rng, "uniform"), action.shape, minval=-1.0, maxval=1.0)
    explore = jax.random.uniform(derive(rng, "explore"), action.shape[:-1]) < epsilon
    noisy = action + noise * jax.random.normal(derive(rng, "noise"), action.shape)
    return jnp.where(explore[..., None], uniform, jnp.clip(noisy, -1, 1))
