"""Transforms of rewards. The reward at FIRST is 0 and stays 0."""

import abc
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from dm_env import specs as dm_specs

from distrl import specs
from distrl.agents.agent import Agent
from distrl.agents.settings import algorithm
from distrl.errors import ConfigError
from distrl.field_checks import check_number, is_number
from distrl.replay.config import ReplayConfig
from distrl.specs import EnvironmentSpec
from distrl.transforms import statistics as running
from distrl.transforms.base import (
    Stepwise,
    Transform,
    require_scalar_reward,
)
from distrl.transforms.statistics import Statistics
from distrl.types import Array, Nest, State, StepType, TimeStep, Trajectory

_REWARD = frozenset({"reward"})
_WEIGHTS_FIRST = {"reward_weights": "each reward of a vector must be weighted as it is"}


class _ScalarReward(Stepwise):
    """A transform of one float32 reward a step."""

    changes = _REWARD

    def spec(self, env_spec: EnvironmentSpec) -> EnvironmentSpec:
        """See `Transform`."""
        require_scalar_reward(self.name, env_spec)
        return env_spec._replace(reward=dm_specs.Array((), np.float32, "reward"))


@dataclasses.dataclass(frozen=True)
class RewardClip(_ScalarReward):
    """Clips rewards to [-limit, limit].

    Attributes:
      limit: rewards are clipped to [-limit, limit]; above 0.
    """

    limit: float = 1.0

    name = "reward_clip"
    not_before: ClassVar[Mapping[str, str]] = {
        "reward_normalizer": "its statistics would be of clipped rewards",
        **_WEIGHTS_FIRST,
    }

    def __post_init__(self) -> None:
        check_number(self, "limit", lambda x: x > 0, "above 0", self.name)

    def apply(self, statistics: Nest, timestep: TimeStep) -> TimeStep:
        """See `Stepwise`."""
        return timestep._replace(reward=jnp.clip(timestep.reward, -self.limit, self.limit))


@dataclasses.dataclass(frozen=True)
class RewardScale(_ScalarReward):
    """Multiplies rewards, and so values and advantages.

    If returns are large (CartPole-v1's are up to 500), the values' part of the gradient dominates
    the policy's in a shared torso without scaling.

    Attributes:
      scale: factor of all rewards, above 0.
    """

    scale: float = 0.1

    name = "reward_scale"
    not_before: ClassVar[Mapping[str, str]] = {
        "reward_normalizer": "dividing by the rewards' own scale would undo it",
        **_WEIGHTS_FIRST,
    }

    def __post_init__(self) -> None:
        check_number(self, "scale", lambda x: x > 0, "above 0", self.name)

    def apply(self, statistics: Nest, timestep: TimeStep) -> TimeStep:
        """See `Stepwise`."""
        return timestep._replace(reward=timestep.reward * self.scale)


@dataclasses.dataclass(frozen=True)
class RewardNormalizer(_ScalarReward):
    """Divides rewards by their running root mean square: the standard deviation about 0.

    About 0 because rewards are not shifted (with episodes of different lengths, a shift would
    change which policy is best), so that rewards that are always 1 stay 1. The statistics are those
    of every transition that the learner consumed; before the first update rewards are unchanged.

    Attributes:
      clip: results are clipped to [-clip, clip]; None: not at all.
      epsilon: added to the mean square.
    """

    clip: float | None = 10.0
    epsilon: float = 1e-8

    name = "reward_normalizer"
    not_before: ClassVar[Mapping[str, str]] = _WEIGHTS_FIRST

    def __post_init__(self) -> None:
        if self.clip is not None:
            check_number(self, "clip", lambda x: x > 0, "above 0, or None", self.name)
        check_number(self, "epsilon", lambda x: x > 0, "above 0", self.name)

    def initial_statistics(self, env_spec: EnvironmentSpec) -> Statistics:
        """See `Transform`."""
        return running.initial(specs.struct(env_spec.reward))

    def apply(self, statistics: Statistics, timestep: TimeStep) -> TimeStep:
        """See `Stepwise`."""
        square = running.variance(statistics) + jnp.square(running.mean(statistics))
        reward = timestep.reward / jnp.sqrt(square + self.epsilon)
        if self.clip is not None:
            reward = jnp.clip(reward, -self.clip, self.clip)
        return timestep._replace(reward=reward)

    def batch_statistics(self, batch: Trajectory) -> Statistics:
        """See `Transform`. Counts the T transitions, except those from LAST to FIRST."""
        timestep = batch.timestep
        return running.of_batch(timestep.reward[1:], timestep.step_type[:-1] != StepType.LAST)

    def merge_statistics(self, old: Statistics, new: Statistics) -> Statistics:
        """See `Transform`."""
        return running.merge(old, new)


@dataclasses.dataclass(frozen=True)
class RewardWeights(Stepwise):
    """Reduces a vector of rewards to one: the sum of its elements times `weights`.

    Attributes:
      weights: a weight for each element of the reward.
    """

    weights: tuple[float, ...]

    name = "reward_weights"
    changes = _REWARD

    def __post_init__(self) -> None:
        numbers = isinstance(self.weights, tuple) and all(map(is_number, self.weights))
        if not numbers or not self.weights:
            raise ConfigError(
                f"transforms: reward_weights.weights must be a tuple of numbers, got "
                f"{self.weights!r}"
            )

    def spec(self, env_spec: EnvironmentSpec) -> EnvironmentSpec:
        """See `Transform`."""
        if env_spec.reward.shape != (len(self.weights),):
            raise ConfigError(
                f"transforms: reward_weights.weights has {len(self.weights)} numbers, and the "
                f"reward's shape is {list(env_spec.reward.shape)}; give one weight for each"
            )
        return env_spec._replace(reward=dm_specs.Array((), np.float32, "reward"))

    def apply(self, statistics: Nest, timestep: TimeStep) -> TimeStep:
        """See `Stepwise`."""
        weights = np.array(self.weights, np.float32)
        return timestep._replace(reward=jnp.sum(timestep.reward * weights, axis=-1))


class _Shaping(Transform):
    """Replaces the reward of each transition by a function of it.

    Its state is a stream's last observation, so that an agent whose network gets rewards as inputs
    gets the same ones for acting and learning.
    """

    changes = _REWARD
    not_before: ClassVar[Mapping[str, str]] = _WEIGHTS_FIRST

    @abc.abstractmethod
    def _rewards(self, before: Nest, timestep: TimeStep) -> Array:
        """Returns rewards of transitions from observations `before` to `timestep`, `[T, B]`."""

    def spec(self, env_spec: EnvironmentSpec) -> EnvironmentSpec:
        """See `Transform`. Traces the function to check its output."""
        require_scalar_reward(self.name, env_spec)
        rows = (5, 3)
        timestep = jax.tree.map(
            lambda s: jax.ShapeDtypeStruct((*rows, *s.shape), s.dtype),
            specs.timestep_struct(env_spec),
        )
        made = jax.eval_shape(self._rewards, timestep.observation, timestep)
        if getattr(made, "shape", None) != rows:
            raise ConfigError(
                f"transforms: {self.name}.function must give one number a transition: for [T, B] "
                f"= {list(rows)} it gives {made}"
            )
        return env_spec._replace(reward=dm_specs.Array((), np.float32, "reward"))

    def initial_state(self, env_spec: EnvironmentSpec, batch_size: int) -> State:
        """See `Transform`: the previous observation."""
        return specs.zeros(env_spec.observation, batch_size)

    def step(self, statistics: Nest, state: State, timestep: TimeStep) -> tuple[TimeStep, State]:
        """See `Transform`."""
        rows = jax.tree.map(lambda x: jnp.asarray(x)[None], timestep)
        return timestep._replace(reward=self._shaped(state, rows)[0]), timestep.observation

    def unroll(
        self, statistics: Nest, state: State, rng: jax.Array, batch: Trajectory
    ) -> Trajectory:
        """See `Transform`."""
        reward = self._shaped(state, batch.timestep)
        return batch._replace(timestep=batch.timestep._replace(reward=reward))

    def _shaped(self, state: State, timestep: TimeStep) -> Array:
        before = jax.tree.map(
            lambda first, x: jnp.concatenate([first[None], x[:-1]]), state, timestep.observation
        )
        rewards = self._rewards(before, timestep).astype(jnp.float32)
        return jnp.where(timestep.step_type == StepType.FIRST, 0.0, rewards)


@dataclasses.dataclass(frozen=True)
class RewardShaping(_Shaping):
    """Replaces the reward of each transition by a function of it.

    Attributes:
      function: `(observation, action, reward, next_observation) -> reward`, in jax.numpy, over
        the transitions' values `[T, B, ...]` as they reach this transform (T is 1 for acting), to
        float32 `[T, B]`. Its values for transitions from LAST to FIRST are not used.
    """

    function: Callable[[Nest, Nest, Array, Nest], Array]

    name = "reward_shaping"

    def __post_init__(self) -> None:
        _check_function(self.name, self.function)

    def _rewards(self, before: Nest, timestep: TimeStep) -> Array:
        return self.function(before, timestep.prev_action, timestep.reward, timestep.observation)


@dataclasses.dataclass(frozen=True)
class PotentialShaping(_Shaping):
    """Adds `discount * f(next observation) - f(observation)`, which keeps the best policy.

    Ng, Harada and Russell 1999, "Policy invariance under reward transformations". The potential
    after a true end is 0; after a time limit it is that of the final observation.

    Attributes:
      function: f, in jax.numpy, from observations `[T, B, ...]` as they reach this transform to
        float32 `[T, B]`.
      discount: the agent's discount.
    """

    function: Callable[[Nest], Array]
    discount: float

    name = "potential_shaping"

    def __post_init__(self) -> None:
        _check_function(self.name, self.function)
        check_number(self, "discount", lambda x: 0 <= x <= 1, "in [0, 1]", self.name)

    def check(self, config: Any, agent: Agent, replay: ReplayConfig) -> None:
        """See `Transform`. Refuses another discount than the agent's, and REINFORCE's returns."""
        if "discount" in getattr(config, "ranges", {}):
            raise ConfigError(
                "potential_shaping with Tunable: agent.discount would change, and "
                "potential_shaping.discount would not; leave one of the two out"
            )
        discount = getattr(algorithm(config), "discount", self.discount)
        if discount != self.discount:
            raise ConfigError(
                f"potential_shaping.discount={self.discount:g} is not agent.discount={discount:g}, "
                "so that the shaping would change which policy is best; use the same for both"
            )
        if getattr(config, "whole_episodes", False):
            raise ConfigError(
                f"potential_shaping with {type(algorithm(config)).__name__}: returns that a time "
                "limit ends have no value after them that would cancel the last potential, which "
                "would change which policy is best; take A2C with gae_lambda=1"
            )

    def _rewards(self, before: Nest, timestep: TimeStep) -> Array:
        after = self.discount * timestep.discount * self.function(timestep.observation)
        return timestep.reward + after - self.function(before)


def _check_function(name: str, function: object) -> None:
    if not callable(function):
        raise ConfigError(f"transforms: {name}.function must be a function, got {function!r}")
