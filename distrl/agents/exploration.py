"""Exploration of agents that learn values: small pure functions and their settings."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from distrl.agents.schedules import Schedule
from distrl.errors import ConfigError
from distrl.field_checks import check_number
from distrl.random_keys import derive


@dataclasses.dataclass(frozen=True)
class EpsilonSchedule(Schedule):
    """Epsilon as a function of environment steps or updates: goes from `start` to `end`.

    Steps of all actors count, as their unrolls reach the table (see `InsertedSteps`): so the
    schedule depends neither on the number of actors nor, with `updates` None, on how fast the
    learner is. Actors get epsilon with the parameters. A resumed run continues with the counts of
    its checkpoint.

    Streams may explore differently (Ape-X: Horgan et al. 2018, https://arxiv.org/abs/1803.00933,
    has start = end = 0.4 and spread = 7): stream i acts with `epsilon ** (1 + spread * share)`,
    where its share in [0, 1) is `stream_shares`. If epsilon is 0 or 1, all streams have it.

    Attributes:
      start: epsilon at first, in [0, 1].
      end: last epsilon, in [0, 1].
      updates: learner updates after which epsilon is `end`; None: `steps` are counted instead.
      spread: stream i explores with `epsilon ** (1 + spread * share)`, its share in [0, 1); 0: all
        streams have the same epsilon.
      steps: environment steps after which epsilon is `end`; not used with `updates`.
    """

    PREFIX: ClassVar[str] = "agent.epsilon"

    start: float = 1.0
    end: float = 0.01
    updates: int | None = None
    spread: float = 0.0
    steps: int = 50_000
    shape: str = "linear"
    at: tuple[float, ...] | None = None
    values: tuple[float, ...] | None = None
    function: Any = None

    def __post_init__(self) -> None:
        for field in ("start", "end"):
            check_number(self, field, lambda x: 0 <= x <= 1, "in [0, 1]", "agent.epsilon")
        check_number(self, "spread", lambda x: x >= 0, "of at least 0", "agent.epsilon")
        self._check_schedule(self.start, self.end, 1.0)

    def initial(self) -> jax.Array:
        """Returns epsilon before anything is counted, a float32 scalar."""
        return self.initial_value(self.start, self.end)

    def after_updates(self, updates: jax.Array, epsilon: jax.Array) -> jax.Array:
        """Returns epsilon after a number of updates: `epsilon` itself if steps are counted."""
        return self.value_after_updates(self.start, self.end, updates, epsilon)

    def in_params(self, params: dict[str, Any], env_steps: int) -> dict[str, Any]:
        """Returns the parameters with the epsilon after `env_steps`, if steps are counted.

        Args:
          params: with a float32 scalar "epsilon". They are not changed.
          env_steps: environment steps of the whole program so far.
        """
        epsilon = self.value_after_env_steps(self.start, self.end, env_steps)
        return params if epsilon is None else {**params, "epsilon": epsilon}

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

    0, 1/2, 1/4, 3/4, 1/8, ...: any range of consecutive ids is spread evenly over [0, 1), so that
    the number of streams and an actor's part of them need not be known. Every second id would not
    be; see `AgentPool.program_ids`.

    Args:
      stream_ids: integers, 0 or more, of any shape; their lowest 24 bits count.

    Returns:
      float32 in [0, 1), of the same shape; exact.
    """
    ids = jnp.asarray(stream_ids, jnp.uint32)[..., None]
    bits = jnp.arange(24, dtype=jnp.uint32)
    return jnp.sum((ids >> bits & 1) * 0.5 ** (bits + 1.0), axis=-1)


def epsilon_greedy(
    rng: jax.Array,
    values: jax.Array,
    epsilon: jax.typing.ArrayLike,
    legal: jax.Array | None = None,
) -> jax.Array:
    """Returns a uniformly random action with probability epsilon, otherwise the best (first) one.

    Args:
      rng: raw key.
      values: [..., num_actions].
      epsilon: in [0, 1]; a scalar, or [...].
      legal: bool [..., num_actions], at least one of each row; None: all. Others are never chosen.

    Returns:
      int32 [...].
    """
    shape = values.shape[:-1]
    if legal is None:
        random = jax.random.randint(derive(rng, "uniform"), shape, 0, values.shape[-1])
    else:
        random = jax.random.categorical(derive(rng, "uniform"), jnp.where(legal, 0.0, -jnp.inf))
        values = jnp.where(legal, values, -jnp.inf)
    explore = jax.random.uniform(derive(rng, "explore"), shape) < epsilon
    return jnp.where(explore, random, jnp.argmax(values, axis=-1))


def explore_legal(
    explore: Callable[..., jax.Array],
    rng: jax.Array,
    values: jax.Array,
    epsilon: jax.typing.ArrayLike,
    legal: jax.Array | None,
) -> jax.Array:
    """Returns the actions of a user's own exploration.

    Actions that are illegal or do not exist are replaced by the best legal one.

    Args:
      explore: (rng, values, epsilon) -> int [...]. Values of illegal actions are -infinity.
      rng, values, epsilon, legal: as in `epsilon_greedy`.
    """
    if legal is not None:
        values = jnp.where(legal, values, -jnp.inf)
    action = explore(rng, values, epsilon)
    allowed = (action >= 0) & (action < values.shape[-1])
    if legal is not None:
        allowed &= jnp.take_along_axis(legal, action[..., None], axis=-1)[..., 0]
    return jnp.where(allowed, action, jnp.argmax(values, axis=-1))


def check_explore(explore: Callable[..., Any], num_actions: int, spread: bool) -> None:
    """Raises ConfigError unless a user's own exploration gives whole numbers `[B]`.

    Args:
      explore: see `explore_legal`. JAX traces it, which initialises no backend.
      num_actions: number of actions.
      spread: whether epsilon is `[B]`; otherwise it is a scalar.
    """
    size = num_actions + 1  # differs from the size of the actions' axis
    values = jax.ShapeDtypeStruct((size, num_actions), np.float32)
    epsilon = jax.ShapeDtypeStruct((size,) if spread else (), np.float32)
    takes = "it must take (rng, values [B, A], epsilon) in JAX"
    try:
        got = jax.eval_shape(explore, jax.ShapeDtypeStruct((2,), np.uint32), values, epsilon)
    except Exception as error:
        line = f"{type(error).__name__}: {error}".strip().splitlines()[0]
        raise ConfigError(f"agent.explore: {takes}; {line}") from error
    shape, dtype = getattr(got, "shape", None), getattr(got, "dtype", None)
    if shape != (size,) or dtype is None or not jnp.issubdtype(dtype, jnp.integer):
        gives = f"{dtype} {list(shape)}" if shape is not None and dtype is not None else repr(got)
        raise ConfigError(
            f"agent.explore: for values [{size}, {num_actions}] it must give integers [{size}], "
            f"and gives {gives}"
        )
