"""A business simulator as an environment: state, action, and rewards that may be known late.

The three methods that a user writes have the names of MARO's environment wrapper (Microsoft,
github.com/microsoft/maro).
"""

import abc
from typing import Any

import dm_env
import numpy as np
import numpy.typing as npt
from dm_env import specs as dm_specs

from distrl import specs
from distrl.errors import SpecError
from distrl.field_checks import check_whole
from distrl.types import Nest


class Simulator(dm_env.Environment):
    """An environment around a simulator: subclass it and use the subclass in a `PythonEnvironment`.

    Steps are numbered from 0 in each episode: step i is the i-th action. The reward of an action is
    known at most `reward_delay` steps after it: `get_reward(i)` is called right after step
    `i + reward_delay`, and at the episode's end (a true one or a time limit) for every remaining
    step. Agents learn from each action's own reward; `timestep.reward` is the sum of the rewards
    that became known in the step, so that returns are exact.

    Attributes:
      reward_delay: 0 or more; a class attribute, or set in `__init__`.
    """

    reward_delay: int = 0

    # `reset` sets these. They are class attributes, so that subclasses need not call `__init__`.
    _ended = True
    _step = 0  # the next action's number
    _late: npt.NDArray[Any]  # [reward_delay + 1, ...], rewards that became known in the last step
    _success = -1

    @abc.abstractmethod
    def reset_simulator(self) -> None:
        """Starts an episode."""

    @abc.abstractmethod
    def step_simulator(self, env_action: Any) -> tuple[bool, bool]:
        """Advances the simulator by one step.

        Args:
          env_action: the result of `to_env_action`.

        Returns:
          `(done, truncated)`: whether the episode truly ended, and whether a time limit cut it.
          If both are true it truly ended.
        """

    @abc.abstractmethod
    def get_state(self) -> Nest:
        """Returns the current observation, as declared by `observation_spec`."""

    def to_env_action(self, action: Nest) -> Any:
        """Returns the simulator's action for the agent's; the same unless overridden."""
        return action

    @abc.abstractmethod
    def get_reward(self, step: int) -> Any:
        """Returns the reward for the action of step `step`, as declared by `reward_spec`.

        Called once for each step, in order.
        """

    def success(self) -> bool | None:
        """Returns whether the episode succeeded; None if it neither succeeded nor failed.

        Called at an episode's end, if overridden.
        """
        return None

    def reward_spec(self) -> dm_specs.Array:
        """Returns the spec of one float32; override it for a vector of rewards."""
        return dm_specs.Array((), np.float32, "reward")

    def env_info_spec(self) -> dict[str, dm_specs.Array]:
        """Returns the specs of `env_info`, by name; see `distrl.specs.EnvironmentSpec`.

        Raises:
          ConfigError: `reward_delay` is not a number of steps.
        """
        declared, shape = {}, self._late_shape()
        if self.reward_delay:
            declared["late_reward"] = dm_specs.Array(shape, np.float32, "late_reward")
        if self._reports_success():
            declared["success"] = dm_specs.Array((), np.int8, "success")
        return declared

    def env_info(self) -> dict[str, Any]:
        """Returns the info of the last step, by name."""
        info: dict[str, Any] = {}
        if self.reward_delay:
            info["late_reward"] = self._late
        if self._reports_success():
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
          SpecError: a reward's shape is not that of `reward_spec`, or `success` gave a number.
        """
        if self._ended:
            return self.reset()
        done, truncated = self.step_simulator(self.to_env_action(action))
        self._ended = bool(done or truncated)
        delay = self.reward_delay
        self._late = np.zeros_like(self._late)
        # Part k is the reward for the action k steps before this one. Oldest first.
        for k in range(delay, -1, -1) if self._ended else (delay,):
            if k <= self._step:
                self._late[k] = self._reward(self._step - k)
        self._step += 1
        reward, state = self._late.sum(axis=0), self.get_state()
        if not self._ended:
            return dm_env.transition(reward, state)
        if self._reports_success():
            where = f"{type(self).__name__}.success()"
            self._success = int(specs.success_code(self.success(), where))
        if done:
            return dm_env.termination(reward, state)
        return dm_env.truncation(reward, state)

    def _late_shape(self) -> tuple[int, ...]:
        check_whole(self, "reward_delay", type(self).__name__, least=0)
        return (self.reward_delay + 1, *self.reward_spec().shape)

    def _reward(self, step: int) -> npt.NDArray[Any]:
        reward = np.asarray(self.get_reward(step), np.float32)
        if reward.shape != self._late.shape[1:]:
            raise SpecError(
                f"{type(self).__name__}.get_reward({step}): expected shape "
                f"{list(self._late.shape[1:])}, as reward_spec says, got {list(reward.shape)}"
            )
        return reward

    def _reports_success(self) -> bool:
        return type(self).success is not Simulator.success
