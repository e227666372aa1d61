"""PettingZoo's turn-based environments (AEC: agent environment cycle), as steppers."""

from typing import Any

from distrl.envs.adapters.gym_stepper import seeded_reset
from distrl.envs.adapters.stepper import Step
from distrl.envs.multi_agent.joint import AgentStep, JointSpec, JointSteps, agent_conversions
from distrl.errors import SpecError
from distrl.types import Nest, StepType


class TurnStepper:
    """Steps a `pettingzoo.AECEnv`.

    A joint step has the time step of the agent whose turn it is, and the last ones of agents that
    ended since the turn before. An agent's reward is the sum since its own last turn. An agent that
    ends without ever having had a turn has no time step in that episode.
    """

    def __init__(self, env: Any, seed: int, max_episode_steps: int | None = None):
        """Args:
        env: the environment.
        seed: seed of its first reset.
        max_episode_steps: a time limit, in turns; None: no limit beyond the environment's own.
        """
        self._env = env
        self._limit = max_episode_steps
        self._elapsed = 0
        self._seed: int | None = seed
        self._agents = agent_conversions(env, env.possible_agents)
        agents = {agent: c.spec for agent, c in self._agents.items()}
        self.joint_spec = JointSpec(agents, in_turns=True)
        self._joint = JointSteps(self.joint_spec)
        self._begun: set[str] = set()  # agents that have had a turn in this episode

    def reset(self) -> Step:
        """See `Stepper`."""
        if self._seed is None:
            self._env.reset()
        else:
            seeded_reset(self._env, self._seed)
        self._seed = None
        self._elapsed = 0
        self._begun.clear()
        step = self._joint_step(StepType.FIRST)
        if step.step_type == StepType.LAST:
            raise SpecError("reset: the environment has no agents that act after it")
        return step

    def step(self, action: Nest) -> Step:
        """See `Stepper`."""
        agent = self._env.agent_selection
        self._env.step(self._agents[agent].write(action[agent]))
        self._elapsed += 1
        if self._elapsed == self._limit:
            return self._ends_of_all()
        return self._joint_step(StepType.MID)

    def close(self) -> None:
        """See `Stepper`."""
        self._env.close()

    def _joint_step(self, step_type: int) -> Step:
        """Returns the next turn, with the ends of the agents that ended before it."""
        agent_steps = []
        while self._env.agents:
            agent = self._env.agent_selection
            observation, reward, terminated, truncated, info = self._env.last()
            observation = self._agents[agent].read(observation)
            first = agent not in self._begun
            info = self._agents[agent].info(info, first)
            if not (terminated or truncated):
                self._begun.add(agent)
                kind, reward = (StepType.FIRST, 0.0) if first else (StepType.MID, reward)
                agent_steps.append(AgentStep(agent, kind, reward, 1.0, observation, info))
                return self._joint.step(step_type, agent_steps)
            if not first:
                discount = 0.0 if terminated else 1.0
                agent_steps.append(
                    AgentStep(agent, StepType.LAST, reward, discount, observation, info)
                )
            self._env.step(None)
        return self._joint.step(StepType.LAST, agent_steps)

    def _ends_of_all(self) -> Step:
        """Returns the last joint step, with what each agent has got since its own last turn."""
        env, agent_steps = self._env, []
        for agent in filter(self._begun.__contains__, env.agents):
            conversion = self._agents[agent]
            agent_steps.append(
                AgentStep(
                    agent,
                    StepType.LAST,
                    env._cumulative_rewards[agent],  # as in its `last`
                    0.0 if env.terminations[agent] else 1.0,
                    conversion.read(env.observe(agent)),
                    conversion.info(env.infos[agent], False),
                )
            )
        return self._joint.step(StepType.LAST, agent_steps)
