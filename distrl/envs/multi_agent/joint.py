"""Several agents' time steps as one joint step, so that every pool can step such environments.

A joint step holds the time steps that its agents have at that moment: of all of them if they act
together, of one if they take turns. Its observation is a dict by agent; `env_info` says who has a
time step, and of what kind. Where a pool ends an episode by itself (a time limit, a rebuilt
environment), `AgentPool` ends the episodes of all agents.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from dm_env import specs as dm_specs

from distrl import specs
from distrl.envs.adapters import spaces
from distrl.envs.adapters.info import InfoReader, attribute
from distrl.envs.adapters.stepper import Step
from distrl.errors import ConfigError, SpecError
from distrl.types import Nest, StepType

PRESENT, STEP_TYPE, REWARD, DISCOUNT = "present", "step_type", "reward", "discount"
"""Names in a joint step's `env_info`, each `[A]`: whether the agent has a time step (int8), and its
parts (int8, float32, float32)."""
AGENT_INFO = "agents"
"""Name in a joint step's `env_info` of a dict of the agents' own `env_info`, of those with any."""


class AgentStep(NamedTuple):
    """A time step of one agent; fields as in `Step`."""

    agent: str
    step_type: int
    reward: float
    discount: float
    observation: Nest
    env_info: Any = ()


@dataclasses.dataclass(frozen=True)
class JointSpec:
    """The specs of an environment's agents, and of their joint steps.

    Attributes:
      agents: the spec of each agent that the environment may ever have, by id.
      in_turns: whether one agent acts in an environment step, and not all.
      ends_itself: whether only the environment itself may end an episode: a time limit from outside
        would lose the pending rewards of its waiting agents.
    """

    agents: Mapping[str, specs.EnvironmentSpec]
    in_turns: bool = False
    ends_itself: bool = False

    def __post_init__(self) -> None:
        if not self.agents:
            raise ConfigError("environment: it has no agents")
        for agent, spec in self.agents.items():
            if not isinstance(agent, str):
                raise ConfigError(f"environment: agent ids must be strings, got {agent!r}")
            if spec.reward.shape:
                raise ConfigError(
                    f"environment: the reward of agent {agent!r} has shape "
                    f"{list(spec.reward.shape)}; in environments with several agents it must be "
                    "one number"
                )

    def joint(self) -> specs.EnvironmentSpec:
        """Returns the spec of the joint steps, whose reward is the sum over all agents."""
        shape = (len(self.agents),)
        infos = {agent: spec.env_info for agent, spec in self.agents.items() if spec.env_info}
        return specs.EnvironmentSpec(
            observation={agent: spec.observation for agent, spec in self.agents.items()},
            action={agent: spec.action for agent, spec in self.agents.items()},
            env_info={
                PRESENT: dm_specs.BoundedArray(shape, np.int8, 0, 1, PRESENT),
                STEP_TYPE: dm_specs.BoundedArray(shape, np.int8, 0, 2, STEP_TYPE),
                REWARD: dm_specs.Array(shape, np.float32, REWARD),
                DISCOUNT: dm_specs.BoundedArray(shape, np.float32, 0, 1, DISCOUNT),
                **({AGENT_INFO: infos} if infos else {}),
            },
            observation_start=self._starts("observation"),
            action_start=self._starts("action"),
        )

    def _starts(self, part: str) -> Nest:
        """Returns the agents' `start` values of a part; None if no agent has any."""
        starts = {agent: getattr(spec, f"{part}_start") for agent, spec in self.agents.items()}
        if all(start is None for start in starts.values()):
            return None
        for agent, spec in self.agents.items():
            if starts[agent] is None:
                nest = getattr(spec, part)
                starts[agent] = jax.tree.map(lambda _: 0, nest, is_leaf=specs.is_spec)
        return starts


class JointSteps:
    """Combines agents' time steps into joint steps.

    An agent without a time step has its last observation and info, and zeros before its first step.
    """

    def __init__(self, spec: JointSpec):
        """Args: spec: the agents' specs."""
        self._index = {agent: k for k, agent in enumerate(spec.agents)}
        self._observation = {
            agent: specs.zeros(agent_spec.observation) for agent, agent_spec in spec.agents.items()
        }
        self._env_info = {
            agent: specs.zeros(agent_spec.env_info)
            for agent, agent_spec in spec.agents.items()
            if agent_spec.env_info
        }

    def step(self, step_type: int, agent_steps: Iterable[AgentStep]) -> Step:
        """Returns a joint step.

        Args:
          step_type: the joint step's: FIRST of an episode, LAST if no agent has a next time step.
          agent_steps: at most one per agent.

        Raises:
          SpecError: an agent is unknown, or has two time steps.
        """
        count = len(self._index)
        present, step_types = np.zeros(count, np.int8), np.zeros(count, np.int8)
        reward, discount = np.zeros(count, np.float32), np.zeros(count, np.float32)
        for step in agent_steps:
            k = self._index.get(step.agent)
            if k is None:
                raise SpecError(
                    f"agent {step.agent!r} is unknown; possible agents are {sorted(self._index)}"
                )
            if present[k]:
                raise SpecError(f"agent {step.agent!r} has two time steps at once")
            present[k], step_types[k] = 1, step.step_type
            reward[k], discount[k] = step.reward, step.discount
            self._observation[step.agent] = step.observation
            if step.agent in self._env_info:
                self._env_info[step.agent] = step.env_info
        info: dict[str, Any]
        info = {PRESENT: present, STEP_TYPE: step_types, REWARD: reward, DISCOUNT: discount}
        if self._env_info:
            info[AGENT_INFO] = dict(self._env_info)
        total = 0.0 if step_type == StepType.FIRST else float(reward.sum())
        return Step(step_type, total, 1.0, dict(self._observation), info)


def agent_conversions(env: Any, agent_ids: Iterable[str]) -> "dict[str, AgentConversion]":
    """Returns the conversions of a PettingZoo environment's values, by agent."""
    info_space = attribute(env, "info_space", lambda agent: None)
    success = bool(attribute(env, "reports_success", False))
    return {
        agent: AgentConversion(
            agent,
            env.observation_space(agent),
            env.action_space(agent),
            InfoReader(info_space(agent), success),
        )
        for agent in agent_ids
    }


class AgentConversion:
    """Converts one agent's observations and actions between its spaces and distrl's specs.

    Attributes:
      spec: the agent's spec.
      info: reads the agent's info.
      read: converts its observations.
      write: converts its actions.
    """

    def __init__(self, agent: str, observation_space: Any, action_space: Any, info: InfoReader):
        """Args:
        agent: the agent's id.
        observation_space, action_space: gymnasium's spaces.
        info: reads its info.
        """
        self.info = info
        self.spec = specs.EnvironmentSpec(
            spaces.space_spec(observation_space, f"observation of {agent}"),
            spaces.space_spec(action_space, f"action of {agent}"),
            env_info=info.spec,
            observation_start=spaces.starts(observation_space),
            action_start=spaces.starts(action_space),
        )
        self.read = spaces.reader(observation_space, f"observation of {agent}")
        self.write = spaces.writer(action_space, f"action of {agent}")
