"""The usual wrappers of one environment, by configuration."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import numpy.typing as npt
from dm_env import specs as dm_specs

from distrl import specs
from distrl.envs.adapters.conform import NestCheck
from distrl.envs.adapters.stepper import Step, Stepper
from distrl.errors import ConfigError
from distrl.field_checks import check_flag, check_whole, plain_numbers
from distrl.types import Nest, StepType

_POST_PROCESS = "environment.wrappers.post_process's action"


@dataclasses.dataclass(frozen=True)
class WrapperConfig:
    """Wrappers of each environment. From the inside out: `post_process`, `max_episode_steps`,
    `action_repeat`, `frame_stack`, `clip_actions`.

    Attributes:
      clip_actions: clip continuous actions to their bounds before the environment sees them.
      max_episode_steps: a time limit, in time steps of the environment itself; the last step has
        discount 1, unless the episode truly ends on that very step. None: no limit beyond the
        environment's own.
      action_repeat: number of times that each action is taken, until an episode's end; rewards are
        summed, and the last observation is kept. `env_info["time_steps"]` (int32) is the number of
        time steps.
      frame_stack: number of latest observations on a new leading axis of every leaf, oldest first;
        an episode's first observation is repeated to fill the stack.
      post_process: a function of your own, (action, observation) -> the action that the environment
        gets. What is stored, learned from, and given as `prev_action` is the agent's own action.
        The observation is the environment's newest, before other wrappers; the action is clipped
        before, not after. Both count as the environment's own spaces do, from the `start` of a
        Discrete or MultiDiscrete.
    """

    clip_actions: bool = True
    max_episode_steps: int | None = None
    action_repeat: int = 1
    frame_stack: int = 1
    post_process: Callable[[Nest, Nest], Nest] | None = None

    def __post_init__(self) -> None:
        plain_numbers(self)
        check_flag(self, "clip_actions", "environment.wrappers")
        check_whole(self, "max_episode_steps", "environment.wrappers", none=True)
        for name in ("action_repeat", "frame_stack"):
            check_whole(self, name, "environment.wrappers")
        if self.post_process is not None and not callable(self.post_process):
            raise ConfigError(
                "environment.wrappers.post_process must be a function (action, observation) -> "
                f"action, got {self.post_process!r}"
            )


def wrapped_spec(spec: specs.EnvironmentSpec, config: WrapperConfig) -> specs.EnvironmentSpec:
    """Returns an environment's spec behind its wrappers.

    Raises:
      ConfigError: the environment cannot have these wrappers.
    """
    for name, unset in (("action_repeat", 1), ("max_episode_steps", None)):
        if spec.reward_delay and getattr(config, name) != unset:
            raise ConfigError(
                f"environment.wrappers.{name}={getattr(config, name)}: this environment reports "
                f"rewards up to {spec.reward_delay} steps late, and some would be lost or given "
                "to another action; do it inside the environment"
            )
    if config.action_repeat > 1:
        time_steps = dm_specs.Array((), np.int32, "time_steps")
        spec = spec._replace(env_info={**(spec.env_info or {}), "time_steps": time_steps})
    if config.frame_stack > 1:
        stacked = jax.tree.map(
            lambda leaf: _stacked(leaf, config.frame_stack), spec.observation, is_leaf=specs.is_spec
        )
        spec = spec._replace(observation=stacked)
    return spec


def wrap(stepper: Stepper, spec: specs.EnvironmentSpec, config: WrapperConfig) -> Stepper:
    """Returns `stepper` with the wrappers of `config`, except those without an effect.

    Actions come clipped: the pool clips those of all its environments at once.

    Args:
      stepper: one environment.
      spec: the environment's spec, before `wrapped_spec`.
      config: the wrappers.
    """
    if config.post_process is not None:
        stepper = PostProcess(stepper, config.post_process, spec)
    if config.max_episode_steps is not None:
        stepper = TimeLimit(stepper, config.max_episode_steps)
    if config.action_repeat > 1:
        stepper = ActionRepeat(stepper, config.action_repeat)
    if config.frame_stack > 1:
        stepper = StackFrames(stepper, config.frame_stack, spec.observation)
    return stepper


class _Wrapper:
    """Delegates everything to the stepper that it wraps."""

    def __init__(self, stepper: Stepper):
        self._stepper = stepper

    def reset(self) -> Step:
        """See `Stepper`."""
        return self._stepper.reset()

    def step(self, action: Nest) -> Step:
        """See `Stepper`."""
        return self._stepper.step(action)

    def close(self) -> None:
        """See `Stepper`."""
        self._stepper.close()


class PostProcess(_Wrapper):
    """Passes actions through a function, with the observation that they answer."""

    def __init__(
        self,
        stepper: Stepper,
        function: Callable[[Nest, Nest], Nest],
        spec: specs.EnvironmentSpec,
    ):
        """Args:
        stepper: the stepper to wrap.
        function: see `WrapperConfig.post_process`.
        spec: the environment's spec.
        """
        super().__init__(stepper)
        self._function, self._spec = function, spec
        self._observation: Nest = None

    def reset(self) -> Step:
        """See `Stepper`."""
        step = self._stepper.reset()
        self._observation = step.observation
        return step

    def step(self, action: Nest) -> Step:
        """See `Stepper`."""
        step = self._stepper.step(self._processed(action))
        self._observation = step.observation
        return step

    def _processed(self, action: Nest) -> Nest:
        """Returns the function's action, counted from 0, after a check."""
        spec = self._spec
        given = self._function(
            specs.raised(action, spec.action_start, 1),
            specs.raised(self._observation, spec.observation_start, 1),
        )
        converted = specs.converted(given, spec.action)
        specs.check(converted, spec.action, (), _POST_PROCESS)
        lowered = specs.raised(converted, spec.action_start, -1)
        specs.check_integers(lowered, spec.action, spec.action_start, _POST_PROCESS)
        # The given floats, not the converted ones: an environment of 64 bits gets all 64.
        arrays = jax.tree.map(lambda _, leaf: np.asarray(leaf), converted, given)
        return specs.raised(arrays, spec.action_start, -1)


class TimeLimit(_Wrapper):
    """Ends an episode at a time limit: LAST with discount 1, or 0 if it truly ends there."""

    def __init__(self, stepper: Stepper, max_episode_steps: int):
        """Args: stepper: the stepper to wrap. max_episode_steps: steps of an episode."""
        super().__init__(stepper)
        self._limit = max_episode_steps
        self._elapsed = 0

    def reset(self) -> Step:
        """See `Stepper`."""
        self._elapsed = 0
        return self._stepper.reset()

    def step(self, action: Nest) -> Step:
        """See `Stepper`."""
        step = self._stepper.step(action)
        self._elapsed += 1
        if self._elapsed < self._limit or step.step_type == StepType.LAST:
            return step
        return step._replace(step_type=StepType.LAST)


class ActionRepeat(_Wrapper):
    """Takes each action several times, or until the episode ends."""

    def __init__(self, stepper: Stepper, repeats: int):
        """Args: stepper: the stepper to wrap. repeats: repeats of each action."""
        super().__init__(stepper)
        self._repeats = repeats

    def reset(self) -> Step:
        """See `Stepper`."""
        return self._count(self._stepper.reset(), 0)

    def step(self, action: Nest) -> Step:
        """See `Stepper`."""
        reward: Any = 0.0
        time_steps = 0
        for left in range(self._repeats - 1, -1, -1):
            # An environment may change an action in place.
            step = self._stepper.step(_copied(action) if left else action)
            reward = reward + step.reward
            time_steps += (step.env_info or {}).get("time_steps", 1)
            if step.step_type == StepType.LAST:
                break
        return self._count(step._replace(reward=reward), time_steps)

    def _count(self, step: Step, time_steps: int) -> Step:
        return step._replace(env_info={**(step.env_info or {}), "time_steps": np.int32(time_steps)})


class StackFrames(_Wrapper):
    """Stacks the last observations, oldest first, on a new leading axis of every leaf."""

    def __init__(self, stepper: Stepper, frames: int, spec: Nest):
        """Args:
        stepper: the stepper to wrap.
        frames: number of observations.
        spec: spec of one observation.
        """
        super().__init__(stepper)
        self._frames = frames
        # The spec of a stack no longer says which numbers are legal. Pools look for NaN.
        self._check = NestCheck("observation", spec, False)
        self._structure = jax.tree.structure(specs.struct(spec))
        self._stack: list[npt.NDArray[Any]] = []

    def reset(self) -> Step:
        """See `Stepper`."""
        step = self._stepper.reset()
        return self._with_stack(
            step, [np.stack([x] * self._frames) for x in self._check(step.observation)]
        )

    def step(self, action: Nest) -> Step:
        """See `Stepper`."""
        step = self._stepper.step(action)
        pairs = zip(self._stack, self._check(step.observation))
        return self._with_stack(step, [np.concatenate([old[1:], new[None]]) for old, new in pairs])

    def _with_stack(self, step: Step, stack: list[npt.NDArray[Any]]) -> Step:
        self._stack = stack
        return step._replace(observation=jax.tree.unflatten(self._structure, stack))


def _copied(action: Nest) -> Nest:
    if type(action) is np.ndarray:
        return action.copy()
    if isinstance(action, (dict, list, tuple)):
        return jax.tree.map(lambda leaf: leaf.copy(), action)
    return action  # a number, which nobody can change


def _bounds(spec: Any) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    return spec.minimum, spec.maximum


def _stacked(leaf: Any, frames: int) -> dm_specs.Array:
    shape = (frames, *leaf.shape)
    if isinstance(leaf, dm_specs.BoundedArray):  # a DiscreteArray, which is one, has no shape
        low, high = (np.broadcast_to(bound, shape) for bound in _bounds(leaf))
        return dm_specs.BoundedArray(shape, leaf.dtype, low, high, leaf.name)
    return dm_specs.Array(shape, leaf.dtype, leaf.name)
