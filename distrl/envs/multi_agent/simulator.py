"""A business simulator with several agents: states, actions, and rewards that may be known late.

The methods that a user writes have the names of MARO's environment wrapper (Microsoft,
github.com/microsoft/maro), each for one agent.
"""

import abc
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from dm_env import specs as dm_specs

from distrl import specs
from distrl.envs.multi_agent.control_flow import Act, ControlFlow, End, Episode
from distrl.errors import ConfigError
from distrl.field_checks import check_whole
from distrl.types import Nest


class MultiAgentSimulator(ControlFlow):
    """An environment around a simulator whose agents decide at its events: subclass it.

    Between two events the simulator runs by itself. An agent's steps are numbered from 0 in each
    episode: step i is its own i-th action. The reward of an action is known at most `reward_delay`
    of the agent's steps after it: `get_reward(agent, i)` is called when the agent decides for the
    time `i + 1 + reward_delay`, and at the episode's end for every remaining step. Agents learn
    from each action's own reward.

    Attributes:
      reward_delay: 0 or more; a class attribute, or set in `__init__`.
    """

    reward_delay: int = 0

    @abc.abstractmethod
    def agent_specs(self) -> Mapping[str, tuple[Nest, Nest]]:
        """Returns the specs of each agent's state and action (nests of dm_env specs), by id."""

    @abc.abstractmethod
    def reset_simulator(self) -> None:
        """Starts an episode and runs to its first event."""

    @abc.abstractmethod
    def acting_agents(self) -> Sequence[str]:
        """Returns the agents that decide at this event, one or more."""

    @abc.abstractmethod
    def step_simulator(self, env_actions: Mapping[str, Any]) -> tuple[bool, bool]:
        """Carries out the agents' decisions and runs to the next event.

        Args:
          env_actions: the results of `to_env_action`, by agent.

        Returns:
          `(done, truncated)`: whether the episode truly ended, and whether a time limit cut it.
          If both are true it truly ended.
        """

    @abc.abstractmethod
    def get_state(self, agent: str) -> Nest:
        """Returns the agent's observation, as declared by `agent_specs`."""

    def to_env_action(self, agent: str, action: Nest) -> Any:
        """Returns the simulator's action for the agent's; the same unless overridden."""
        del agent
        return action

    @abc.abstractmethod
    def get_reward(self, agent: str, step: int) -> float:
        """Returns the reward for the agent's action of step `step`.

        Called once for each of its steps, in order.
        """

    def success(self, agent: str) -> bool | None:
        """Returns whether the episode succeeded for the agent; None if it did neither.

        Called at an episode's end, if overridden.
        """
        del agent
        return None

    def agents(self) -> Mapping[str, specs.EnvironmentSpec]:
        """See `ControlFlow`."""
        delay = self.reward_delay
        check_whole(self, "reward_delay", type(self).__name__, least=0)
        info = {}
        if delay:
            info["late_reward"] = dm_specs.Array((delay + 1,), np.float32, "late_reward")
        if self._reports_success():
            info["success"] = dm_specs.BoundedArray((), np.int8, -1, 1, "success")
        return {
            agent: specs.EnvironmentSpec(
                state, action, env_info=info or (), reward_delay=self.reward_delay
            )
            for agent, (state, action) in self.agent_specs().items()
        }

    def run_one_episode(self) -> Episode:
        """See `ControlFlow`."""
        self.reset_simulator()
        steps: dict[str, int] = {}  # actions of each agent so far
        while True:
            acting = list(self.acting_agents())
            if not acting:
                raise ConfigError(
                    f"{type(self).__name__}.acting_agents returned no agent; step_simulator runs "
                    "to the next event at which one decides"
                )
            requests = []
            for agent in acting:
                late = self._late_rewards(agent, steps.get(agent, 0), ended=False)
                info = self._info(late, -1)
                requests.append(Act(agent, self.get_state(agent), float(late.sum()), info))
            actions = yield requests
            for agent in acting:
                steps[agent] = steps.get(agent, 0) + 1
            done, truncated = self.step_simulator(
                {a: self.to_env_action(a, action) for a, action in zip(acting, actions)}
            )
            if done or truncated:
                break
        ends = []
        for agent, count in steps.items():
            late = self._late_rewards(agent, count, ended=True)
            success = self.success(agent) if self._reports_success() else None
            where = f"{type(self).__name__}.success({agent!r})"
            info = self._info(late, int(specs.success_code(success, where)))
            state = self.get_state(agent)
            ends.append(End(agent, state, float(late.sum()), truncated and not done, info))
        yield ends

    def _late_rewards(self, agent: str, count: int, *, ended: bool) -> npt.NDArray[Any]:
        """Returns the rewards that are known now; part k is for the action k steps before."""
        delay = self.reward_delay
        late = np.zeros(delay + 1, np.float32)
        for k in range(delay, -1, -1) if ended else (delay,):
            if count - 1 - k >= 0:
                late[k] = self.get_reward(agent, count - 1 - k)
        return late

    def _info(self, late: npt.NDArray[Any], success: int) -> Any:
        info: dict[str, Any] = {}
        if self.reward_delay:
            info["late_reward"] = late
        if self._reports_success():
            info["success"] = np.int8(success)
        return info or ()

    def _reports_success(self) -> bool:
        return type(self).success is not MultiAgentSimulator.success
