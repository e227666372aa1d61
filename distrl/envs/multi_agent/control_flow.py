"""Environments whose control flow the user writes: who acts when, on what, for which reward.

For hierarchies (an agent sets goals every K steps, another one acts towards them), agents that act
twice in a step or ask each other, and any other order.
"""

import abc
import collections
from collections.abc import Generator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from distrl import specs
from distrl.envs.adapters import spaces
from distrl.envs.adapters.info import dm_info_reader, dm_info_spec
from distrl.envs.adapters.stepper import Step
from distrl.envs.multi_agent.joint import AgentStep, JointSpec, JointSteps
from distrl.errors import SpecError
from distrl.types import Nest, StepType


class Act(NamedTuple):
    """Asks an agent for an action.

    Attributes:
      agent: the agent's id.
      observation: as declared by the agent's spec.
      reward: the reward for its previous action in its episode; ignored at the first one.
      env_info: as declared by the agent's spec.
    """

    agent: str
    observation: Nest
    reward: float = 0.0
    env_info: Any = ()


class End(NamedTuple):
    """Ends an agent's episode; its next `Act` begins another one.

    Attributes:
      agent: the agent's id.
      observation: the final observation.
      reward: the reward for its last action.
      truncated: whether a limit cut the episode, so that the final observation's value counts.
      env_info: as declared by the agent's spec.
    """

    agent: str
    observation: Nest
    reward: float = 0.0
    truncated: bool = False
    env_info: Any = ()


Episode = Generator[Act | End | Sequence[Act | End], Any, None]


class ControlFlow(abc.ABC):
    """One environment with agents and an order of its own: subclass it.

    `run_one_episode` is a generator. It yields an `Act` and receives the action, or a list of `Act`
    and `End`, for agents that act together, and receives a list with an action for each (None for
    an `End`):

        def run_one_episode(self):
            observation = self.env.reset()
            while not self.env.over:
                goal = yield Act("manager", observation, reward)
                ...
    """

    @abc.abstractmethod
    def agents(self) -> Mapping[str, specs.EnvironmentSpec]:
        """Returns the spec of each agent, by id."""

    @abc.abstractmethod
    def run_one_episode(self) -> Episode:
        """Runs one episode of the environment. Every agent's episode has to `End` in it."""

    def close(self) -> None:  # noqa: B027  # most have none
        """Frees the environment's resources."""


class ControlFlowStepper:
    """Steps a `ControlFlow`."""

    def __init__(self, control: ControlFlow):
        """Args: control: the environment."""
        self._control = control
        agents = control.agents()
        self.joint_spec = JointSpec(
            {agent: _narrowed(agent, spec) for agent, spec in agents.items()}, ends_itself=True
        )
        self._joint = JointSteps(self.joint_spec)
        self._read = {
            agent: (
                spaces.dm_reader(spec.observation, f"observation of {agent}"),
                dm_info_reader(spec.env_info, f" of {agent}"),
            )
            for agent, spec in self.joint_spec.agents.items()
        }
        self._write = {agent: spaces.dm_writer(spec.action) for agent, spec in agents.items()}
        self._episode: Episode | None = None
        self._waiting: collections.deque[AgentStep] = collections.deque()
        self._request: list[Act | End] = []  # what the generator waits for
        self._single = False  # whether it yielded one, not a list
        self._acting: list[str] = []  # agents of the last joint step that were asked
        self._answers: dict[str, Nest] = {}  # answers to the request, by agent
        self._open: set[str] = set()  # agents whose episode has begun
        self._over = False  # whether the generator has returned

    def reset(self) -> Step:
        """See `Stepper`."""
        if self._episode is not None:
            self._episode.close()
        self._episode = self._control.run_one_episode()
        self._waiting.clear()
        self._open.clear()
        self._over = False
        self._advance(None)
        if self._over:
            raise SpecError(f"{type(self._control).__name__}: an episode in which no agent acts")
        return self._joint_step(StepType.FIRST)

    def step(self, action: Nest) -> Step:
        """See `Stepper`."""
        for agent in self._acting:
            self._answers[agent] = self._write[agent](jax.tree.map(np.copy, action[agent]))
        if not self._waiting:
            answers = [
                self._answers[part.agent] if isinstance(part, Act) else None
                for part in self._request
            ]
            self._advance(answers[0] if self._single else answers)
        return self._joint_step(StepType.MID)

    def close(self) -> None:
        """See `Stepper`."""
        if self._episode is not None:
            self._episode.close()
        self._control.close()

    def _advance(self, answer: Any) -> None:
        """Runs the generator until it asks for an action or returns; collects time steps."""
        assert self._episode is not None
        while True:
            try:
                request = self._episode.send(answer)
            except StopIteration:
                self._over = True
                if self._open:
                    raise SpecError(
                        f"{type(self._control).__name__}.run_one_episode returned, and the "
                        f"episodes of {sorted(self._open)} have no End"
                    ) from None
                return
            self._single = isinstance(request, (Act, End))
            self._request = [request] if isinstance(request, (Act, End)) else list(request)
            for part in self._request:
                self._waiting.append(self._agent_step(part))
            asked = collections.Counter(p.agent for p in self._request if isinstance(p, Act))
            twice = [agent for agent, count in asked.items() if count > 1]
            if twice:
                raise SpecError(
                    f"{type(self._control).__name__}.run_one_episode: a list with two Acts of "
                    f"agent {twice[0]!r}; yield them one after the other"
                )
            if asked:
                return
            answer = None if self._single else [None] * len(self._request)

    def _agent_step(self, part: Any) -> AgentStep:
        where = f"{type(self._control).__name__}.run_one_episode"
        if not isinstance(part, (Act, End)):
            raise SpecError(f"{where}: expected Act or End, or a list of them, got {part!r}")
        if part.agent not in self.joint_spec.agents:
            raise SpecError(
                f"{where}: agent {part.agent!r} is unknown; agents() has "
                f"{list(self.joint_spec.agents)}"
            )
        kind, discount, reward, opened = StepType.MID, 1.0, part.reward, part.agent in self._open
        if isinstance(part, End):
            if not opened:
                raise SpecError(f"{where}: End of {part.agent!r}, whose episode has not begun")
            self._open.remove(part.agent)
            kind, discount = StepType.LAST, 1.0 if part.truncated else 0.0
        elif not opened:
            self._open.add(part.agent)
            kind, reward = StepType.FIRST, 0.0
        read, read_info = self._read[part.agent]
        env_info = () if read_info is None else _copied(read_info(part.env_info))
        observation = _copied(read(part.observation))
        return AgentStep(part.agent, kind, reward, discount, observation, env_info)

    def _joint_step(self, step_type: int) -> Step:
        """Returns the waiting time steps up to the first agent's second one."""
        agent_steps: dict[str, AgentStep] = {}
        while self._waiting and self._waiting[0].agent not in agent_steps:
            step = self._waiting.popleft()
            agent_steps[step.agent] = step
        self._acting = [s.agent for s in agent_steps.values() if s.step_type != StepType.LAST]
        if self._over and not self._waiting:
            step_type = StepType.LAST
        return self._joint.step(step_type, agent_steps.values())


def _narrowed(agent: str, spec: specs.EnvironmentSpec) -> specs.EnvironmentSpec:
    """Returns an agent's spec with float32 and int32 instead of 64 bits."""
    return spec._replace(
        observation=spaces.dm_spec(spec.observation, f"observation of {agent}"),
        action=spaces.dm_spec(spec.action, f"action of {agent}"),
        env_info=dm_info_spec(spec.env_info, f" of {agent}"),
    )


def _copied(nest: Nest) -> Nest:
    """Returns a copy of a nest: the generator, which keeps running, may reuse its arrays."""
    return jax.tree.map(lambda leaf: leaf.copy() if isinstance(leaf, np.ndarray) else leaf, nest)
