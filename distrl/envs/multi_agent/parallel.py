"""PettingZoo's parallel environments, whose agents act together, as steppers."""

from collections.abc import Mapping, Sequence
from typing import Any

from distrl.envs.adapters.gym_stepper import seeded_reset
from distrl.envs.adapters.stepper import Step
from distrl.envs.multi_agent.joint import AgentStep, JointSpec, JointSteps, agent_conversions
from distrl.errors import SpecError
from distrl.types import Nest, StepType

_PARTS = ("observations", "rewards", "terminations", "truncations", "infos")


class ParallelStepper:
    """Steps a `pettingzoo.ParallelEnv`; agents may come and go within an episode."""

    def __init__(self, env: Any, seed: int):
        """Args: env: the environment. seed: seed of its first reset."""
        self._env = env
        self._seed: int | None = seed
        self._agents = agent_conversions(env, env.possible_agents)
        self.joint_spec = JointSpec({agent: c.spec for agent, c in self._agents.items()})
        self._joint = JointSteps(self.joint_spec)
        self._acting: list[str] = []  # agents that act in the next step

    def reset(self) -> Step:
        """See `Stepper`."""
        answer = self._env.reset() if self._seed is None else seeded_reset(self._env, self._seed)
        self._seed = None
        observations, infos = _dicts("reset", answer, ("observations", "infos"))
        self._acting = list(self._env.agents)
        if not self._acting:
            raise SpecError("reset: the environment has no agents after it")
        first = [self._first(agent, observations, infos) for agent in self._acting]
        return self._joint.step(StepType.FIRST, first)

    def step(self, action: Nest) -> Step:
        """See `Stepper`."""
        actions = {agent: self._agents[agent].write(action[agent]) for agent in self._acting}
        parts = _dicts("step", self._env.step(actions), _PARTS)
        observations, rewards, terminations, truncations, infos = parts
        agent_steps = []
        staying = set(self._env.agents)
        for agent in self._acting:
            observation = self._observation(agent, observations)
            reward = _of(agent, rewards, "reward")
            terminated = _of(agent, terminations, "termination")
            truncated = _of(agent, truncations, "truncation")
            has_ended = bool(terminated or truncated)
            if has_ended == (agent in staying):
                raise SpecError(
                    f"agent {agent!r} has terminated or is truncated, and is still among the "
                    "environment's agents; an agent that has ended must leave them"
                    if has_ended
                    else f"agent {agent!r} has left the environment's agents, neither terminated "
                    "nor truncated; say which, as what follows its last step depends on it"
                )
            kind = StepType.LAST if has_ended else StepType.MID
            discount = 0.0 if terminated else 1.0
            info = self._agents[agent].info(infos.get(agent, {}), False)
            agent_steps.append(AgentStep(agent, kind, reward, discount, observation, info))
        before, self._acting = set(self._acting), list(self._env.agents)
        agent_steps += [
            self._first(agent, observations, infos) for agent in self._acting if agent not in before
        ]
        return self._joint.step(StepType.MID if self._acting else StepType.LAST, agent_steps)

    def close(self) -> None:
        """See `Stepper`."""
        self._env.close()

    def _first(self, agent: str, observations: Any, infos: Any) -> AgentStep:
        observation = self._observation(agent, observations)
        info = self._agents[agent].info(infos.get(agent, {}), True)
        return AgentStep(agent, StepType.FIRST, 0.0, 1.0, observation, info)

    def _observation(self, agent: str, observations: Any) -> Nest:
        if agent not in self._agents:
            raise SpecError(
                f"agent {agent!r} is not among possible_agents, {list(self._env.possible_agents)}"
            )
        return self._agents[agent].read(_of(agent, observations, "observation"))


def _dicts(function: str, answer: Any, names: Sequence[str]) -> tuple[Any, ...]:
    """Returns the dicts by agent that a function of the environment returned.

    Raises:
      SpecError: it returned something else.
    """
    parts = tuple(answer) if isinstance(answer, (tuple, list)) else (answer,)
    if len(parts) != len(names) or not all(isinstance(part, Mapping) for part in parts):
        raise SpecError(
            f"{function}: expected ({', '.join(names)}), dicts by agent, as PettingZoo's parallel "
            f"environments give them, got {', '.join(type(part).__name__ for part in parts)}"
        )
    return parts


def _of(agent: str, values: Any, name: str) -> Any:
    """Returns an agent's part of what the environment returned.

    Raises:
      SpecError: there is none.
    """
    if agent not in values:
        raise SpecError(
            f"agent {agent!r} has no {name}; an agent that acted must get one, even if it has ended"
        )
    return values[agent]
