"""Which policy acts for which agent."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from distrl.envs.multi_agent.joint import JointSpec
from distrl.errors import ConfigError
from distrl.same_spaces import described, equal_starts


class Episode(NamedTuple):
    """One episode of one environment.

    Attributes:
      environment: the environment's number, unique in the program.
      number: the episode's number in this environment, from 0 in each life of its actor.
    """

    environment: int
    number: int


PolicyOf = Mapping[str, str] | Callable[[str, Episode], str]
"""From agents to the names of policies: fixed, or chosen where an agent's episode begins."""


class Assignment:
    """The policies of an environment's agents.

    Attributes:
      policies: names, in order.
      fixed: int32 [A], each agent's policy as a position in `policies`; None if a function chooses.
    """

    def __init__(self, spec: JointSpec, policies: Sequence[str], policy_of: PolicyOf):
        """Args:
        spec: the agents' specs.
        policies: names of the policies, in order.
        policy_of: see `PolicyOf`.

        Raises:
          ConfigError: an agent has no policy, a policy no agent, or agents of one policy have
            different spaces.
        """
        self.policies = list(policies)
        self._index = {name: k for k, name in enumerate(self.policies)}
        self._agents = list(spec.agents)
        self.fixed: npt.NDArray[np.int32] | None = None
        self._function: Callable[[str, Episode], str] | None = None
        if isinstance(policy_of, Mapping):
            self.fixed = self._check_mapping(policy_of)
        elif callable(policy_of):
            self._function = policy_of
        else:
            raise ConfigError(
                "policy_of must be a mapping from agents to policies, or a function of agent and "
                f"episode; got {policy_of!r}"
            )
        for name in self.policies:
            check_alike(spec, self.agents_of(name), name)

    def agents_of(self, policy: str) -> list[str]:
        """Returns the agents that the policy may act for, in the environment's order."""
        if self.fixed is None:
            return self._agents
        k = self._index[policy]
        return [agent for agent, p in zip(self._agents, self.fixed, strict=True) if p == k]

    def choose(self, agent: int, episode: Episode) -> int:
        """Returns the policy of an agent in an episode, as a position in `policies`.

        Args:
          agent: position of the agent in the environment's order.
          episode: the episode, which begins for this agent.

        Raises:
          ConfigError: the user's function returned something that is not a policy's name.
        """
        assert self._function is not None
        name = self._function(self._agents[agent], episode)
        if name not in self._index:
            raise ConfigError(
                f"policy_of({self._agents[agent]!r}, {episode}) returned {name!r}; the policies "
                f"are {self.policies}"
            )
        return self._index[name]

    def _check_mapping(self, policy_of: Mapping[str, str]) -> npt.NDArray[np.int32]:
        missing = [agent for agent in self._agents if agent not in policy_of]
        unknown = [agent for agent in policy_of if agent not in self._agents]
        if missing or unknown:
            what = (
                f"no policy for {missing}"
                if missing
                else f"the environment has no agents {unknown}"
            )
            raise ConfigError(f"policy_of: {what}; its agents are {self._agents}")
        for agent, name in policy_of.items():
            if name not in self._index:
                raise ConfigError(
                    f"policy_of[{agent!r}] is {name!r}; the policies are {self.policies}"
                )
        idle = [name for name in self.policies if name not in policy_of.values()]
        if idle:
            raise ConfigError(f"policies {idle} act for no agent: policy_of names none of them")
        return np.array([self._index[policy_of[agent]] for agent in self._agents], np.int32)


def check_alike(spec: JointSpec, agents: Sequence[str], policy: str) -> None:
    """Raises ConfigError unless agents of one policy have the same spaces."""
    first = agents[0]
    for agent in agents[1:]:
        for part in ("observation", "action"):
            one, other = (getattr(spec.agents[a], part) for a in (first, agent))
            starts = [getattr(spec.agents[a], f"{part}_start") for a in (first, agent)]
            if one != other or not equal_starts(*starts):
                shown = " and ".join(map(described, (one, other), starts))
                change = "pad them to one shape" if one != other else "count from the same start"
                raise ConfigError(
                    f"policy {policy!r} would act for {first!r} and {agent!r}, whose {part}s "
                    f"differ: {shown}; give them policies of their own, or {change}"
                )
