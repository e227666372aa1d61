"""A business simulator as an environment: state, action and reward, which may be known only later.

The three methods a user writes have the names of MARO's environment wrapper (Microsoft,
github.com/microsoft/maro).
"""

import abc
from typing import Any

import dm_env
import numpy as np
from dm_env import specs as dm_specs

from distrl.errors import ConfigError, SpecError
from distrl.types import Nest


class Simulator(dm_env.Environment):
    """Subclass it around a simulator, and give the subclass to a `PythonEnvironment`.

    Steps are numbered from 0 in each episode: step i is the i-th action. `reward_delay` is how
    many steps after an action its reward is known at the latest; the reward of step i is asked for
    right after step `i + reward_delay`, and at the episode's end (a true one or a time limit) for
    every step that it was not asked for yet. What is learned from is each action's own reward;
    `timestep.reward` is what became known in the step, so that returns are exact.

    Attributes:
      reward_delay: 0 or more; a class attribute, or set in `__init__`.
    """

    reward_delay: int = 0

    # Set by `reset`; here so that a subclass's `__init__` need not call this class's.
    _ended = True
    _step = 0  # the next action's number
    _late: np.ndarray  # [reward_delay + 1, ...], of the step before
    _success = -1

    @abc.abstractmethod
    def reset_simulator(self) -> None:
        """Begins an episode."""

    @abc.abstractmethod
    def step_simulator(self, env_action: Any) -> tuple[bool, bool]:
        """Goes on by one step with what `to_env_action` gave.

        Returns:
          `(done, truncated)`: whether the episode truly ended, and whether a time limit cut it
          off. Where both are true it truly ended.
        """

    @abc.abstractmethod
    def get_state(self) -> Nest:
        """The observation now, as `observation_spec` says."""

    def to_env_action(self, action: Nest) -> Any:
        """What the simulator takes for the agent's `action`; as it is unless overridden."""
        return action

    @abc.abstractmethod
    def get_reward(self, step: int) -> Any:
        """The reward of the action of step `step`: a number, or a vector as `reward_spec` says.

        Asked for once for each step, in order.
        """

    def success(self) -> bool | None:
        """Override it to tell success (True) from failure (False); asked for at an episode's end.

        None where this episode is neither.
        """
        return None

    def reward_spec(self) -> dm_specs.Array:
        """One float32; override it for a vector of rewards."""
        return dm_specs.Array((), np.float32, "reward")

    def env_info_spec(self) -> dict[str, dm_specs.Array]:
        """What `env_info` gives beside each step, by name; see `distrl.specs.EnvironmentSpec`.

        Raises:
          ConfigError: `reward_delay` is no count of steps.
        """
        declared, shape = {}, self._late_shape()
        if self.reward_delay:
            declared["late_reward"] = dm_specs.Array(shape, np.float32, "late_reward")
        if self._says_success():
            declared["success"] = dm_specs.Array((), np.int8, "success")
        return declared

    def env_info(self) -> dict[str, Any]:
        """Of the step before."""
        info: dict[str, Any] = {}
        if self.reward_delay:
            info["late_reward"] = self._late
        if self._says_success():
            info["success"] = np.int8(self._success)
        return info

    def reset(self) -> dm_env.TimeStep:
        """See dm_env."""
        self._late = np.zeros(self._late_shape(), np.float32)
        self._step, self._ended, self._success = 0, False, -1
        self.reset_simulator()
        return dm_env.restart(self.get_state())

    def step(self, action: Nest) -> dm_env.TimeStep:
        """See dm_env.

        Raises:
          SpecError: a reward of another shape than `reward_spec` says.
        """
        if self._ended:
            return self.reset()
        done, truncated = self.step_simulator(self.to_env_action(action))
        self._ended = bool(done or truncated)
        delay = self.reward_delay
        self._late = np.zeros_like(self._late)
        # Part k belongs to the action k steps before this one. Oldest first.
        for k in range(delay, -1, -1) if self._ended else (delay,):
            if k <= self._step:
                self._late[k] = self._reward(self._step - k)
        self._step += 1
        reward, state = self._late.sum(axis=0), self.get_state()
        if not self._ended:
            return dm_env.transition(reward, state)
        if self._says_success():
            success = self.success()
            self._success = -1 if success is None else int(success)
        if done:
            return dm_env.termination(reward, state)
        return dm_env.truncation(reward, state)

    def _late_shape(self) -> tuple[int, ...]:
        delay = self.reward_delay
        if isinstance(delay, bool) or not isinstance(delay, int) or delay < 0:
            raise ConfigError(
                f"{type(self).__name__}.reward_delay must be a whole number, 0 or more; "
                f"got {delay!r}"
            )
        return (delay + 1, *self.reward_spec().shape)

    def _reward(self, step: int) -> np.ndarray:
        reward = np.asarray(self.get_reward(step), np.float32)
        if reward.shape != self._late.shape[1:]:
            raise SpecError(
                f"{type(self).__name__}.get_reward({step}): expected shape "
                f"{list(self._late.shape[1:])}, as reward_spec says, got {list(reward.shape)}"
            )
        return reward

    def _says_success(self) -> bool:
        return type(self).success is not Simulator.success
