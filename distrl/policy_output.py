"""What `Policy.act` returns for an observation: an action with its distribution."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from distrl.agents.agent import Agent
from distrl.types import AgentOutput, Nest, Params, TimeStep


class PolicyOutput(NamedTuple):
    """An action, and the distribution that it comes from.

    Attributes:
      action: the action, with continuous ones clipped to their bounds.
      log_prob: float32, its log-probability, that of the action before it was clipped. A policy
        that samples has that of its sampling, also if it acts greedily.
      parameters: the distribution's parameters by name: `value` with `logits` (normalised) or
        `mean` and `std`, for IMPALA, A2C and PPO; `values` and `probabilities` for DQN and R2D2;
        `mean` and `std` before the tanh for SAC.
    """

    action: Nest
    log_prob: Any
    parameters: dict[str, Any]


class WithDistribution:
    """An agent whose extras are its distribution, and which takes the action that it is given.

    `timestep.env_info` has the actions and, for each stream, whether to take them; () gives none.
    """

    def __init__(self, agent: Agent):
        """Args: agent: chooses the actions that are not given."""
        self.env_spec, self._agent = agent.env_spec, agent
        self.initial_params, self.initial_state = agent.initial_params, agent.initial_state

    def actor_step(
        self, rng: Any, params: Params, timestep: TimeStep, state: Any, evaluation: bool = False
    ) -> tuple[AgentOutput, Any]:
        """See `Agent.actor_step`."""
        given = timestep.env_info
        timestep = timestep._replace(env_info=())
        known = self._agent.action_distribution(rng, params, timestep, state, evaluation)
        output, state = self._agent.actor_step(rng, params, timestep, state, evaluation)
        action = output.action
        if given:
            action = jax.tree.map(lambda a, b: jnp.where(given[1], a, b), given[0], action)
        extras = () if known is None else (known.log_prob(action), known.parameters)
        return AgentOutput(action, extras), state
