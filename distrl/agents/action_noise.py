"""Exploration of agents that act with a deterministic policy: noise on their actions."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from distrl.agents.exploration import EpsilonSchedule
from distrl.agents.schedules import Schedule
from distrl.field_checks import check_choice, check_function, check_number
from distrl.random_keys import derive

KINDS = ("gaussian", "uniform")


@dataclasses.dataclass(frozen=True)
class NoiseSchedule(Schedule):
    """Noise on actions, and how it changes; it begins with the agent's `exploration_noise`.

    Steps and updates are counted as for `EpsilonSchedule`.

    Attributes:
      kind: "gaussian": Normal noise, with the schedule's value as its standard deviation;
        "uniform": between minus and plus the value. Each element of an action has its own.
      end: last value, 0 or more; None: the value stays `exploration_noise`.
      steps: environment steps after which the value is `end`.
      updates: learner updates after which the value is `end`; None: `steps` are counted instead.
      explore: a function of your own instead of noise and epsilon, `(rng, action, noise,
        epsilon) -> action`, that JAX can trace: actions float32 [B, D] in [-1, 1], the noise a
        scalar, epsilon a scalar or [B].
    """

    BEFORE: ClassVar[dict[str, Any]] = {"shape": "linear", "kind": "gaussian"}
    PREFIX: ClassVar[str] = "agent.exploration"

    kind: str = "gaussian"
    end: float | None = None
    steps: int = 100_000
    updates: int | None = None
    shape: str = "linear"
    at: tuple[float, ...] | None = None
    values: tuple[float, ...] | None = None
    function: Any = None
    explore: Any = None

    def __post_init__(self) -> None:
        check_choice(self, "kind", KINDS, self.PREFIX)
        if self.end is not None:
            check_number(self, "end", lambda x: x >= 0, "of at least 0, or None", self.PREFIX)
        check_function(self, "explore", "(rng, action, noise, epsilon)", self.PREFIX)

    def check(self, first: float) -> None:
        """Raises ConfigError for settings that cannot work. Args: first: the first value."""
        self._check_schedule(first, first if self.end is None else self.end, float("inf"))

    @property
    def is_constant(self) -> bool:
        """Whether the value never changes."""
        return self.end is None and self.function is None and self.shape != "piecewise"


class NoisyActions:
    """Action noise: the scalars that it needs in an agent's parameters, and actions with it.

    Parameters have the float32 scalars "epsilon" and, if it changes, "noise".
    """

    def __init__(self, epsilon: EpsilonSchedule, noise: float, schedule: NoiseSchedule):
        """Args: epsilon, schedule: the schedules. noise: the first value of `schedule`."""
        self._epsilon, self._schedule = epsilon, schedule
        self._noise = noise
        self._ends = noise, noise if schedule.end is None else schedule.end

    def initial(self) -> dict[str, jax.Array]:
        """Returns the scalars before anything is counted."""
        scalars = {"epsilon": self._epsilon.initial()}
        if not self._schedule.is_constant:
            scalars["noise"] = self._schedule.initial_value(*self._ends)
        return scalars

    def act(
        self, rng: jax.Array, params: Mapping[str, Any], action: jax.Array, stream_ids: jax.Array
    ) -> jax.Array:
        """Returns actions to explore with, float32 [B, D] in [-1, 1].

        Args:
          rng: raw key.
          params: parameters with the scalars.
          action: the policy's, [B, D] in [-1, 1].
          stream_ids: int32 [B].
        """
        epsilon = self._epsilon.of_streams(params["epsilon"], stream_ids)
        noise = params.get("noise", self._noise)
        if self._schedule.explore is not None:
            return self._schedule.explore(rng, action, noise, epsilon)
        return noisy_action(rng, action, noise, epsilon, self._schedule.kind)

    def with_env_steps(self, params: dict[str, Any], env_steps: int) -> dict[str, Any]:
        """See `Agent.with_env_steps`."""
        params = self._epsilon.in_params(params, env_steps)
        if self._schedule.is_constant:
            return params
        noise = self._schedule.value_after_env_steps(*self._ends, env_steps)
        return params if noise is None else {**params, "noise": noise}

    def after_updates(self, params: Mapping[str, Any], updates: jax.Array) -> dict[str, jax.Array]:
        """Returns the scalars after a number of updates."""
        scalars = {"epsilon": self._epsilon.after_updates(updates, params["epsilon"])}
        if not self._schedule.is_constant:
            scalars["noise"] = self._schedule.value_after_updates(
                *self._ends, updates, params["noise"]
            )
        return scalars


def noisy_action(
    rng: jax.Array,
    action: jax.Array,
    noise: jax.typing.ArrayLike,
    epsilon: jax.typing.ArrayLike,
    kind: str = "gaussian",
) -> jax.Array:
    """Returns a uniformly random action with probability epsilon, otherwise `action` plus noise.

    Args:
      rng: raw key.
      action: [..., D], in [-1, 1].
      noise: standard deviation of each element's Normal noise, or the bound of uniform noise.
      epsilon: in [0, 1]; a scalar, or [...].
      kind: one of KINDS.

    Returns:
      float32 [..., D], clipped to [-1, 1].
    """
    uniform = jax.random.uniform(derive(rng, "uniform"), action.shape, minval=-1.0, maxval=1.0)
    explore = jax.random.uniform(derive(rng, "explore"), action.shape[:-1]) < epsilon
    key = derive(rng, "noise")
    if kind == "gaussian":
        drawn = jax.random.normal(key, action.shape)
    else:
        drawn = jax.random.uniform(key, action.shape, minval=-1.0, maxval=1.0)
    noisy = action + noise * drawn
    return jnp.where(explore[..., None], uniform, jnp.clip(noisy, -1, 1))
