"""A learner's state, which checkpoints keep."""

from typing import Any, NamedTuple

import jax

from distrl.agents.agent import Agent, LearnerState
from distrl.agents.weak_types import strong
from distrl.random_keys import derive, root
from distrl.types import Params


class TrainingState(NamedTuple):
    """A learner's whole state after an update. Immutable: each update makes a new one."""

    version: int  # number of updates that made the parameters
    params: Params
    agent: Any  # the agent's learner state, e.g. the optimiser's
    trained_steps: int  # transitions trained on, without padding
    consumed: int  # unrolls learned from
    waited: float  # seconds spent waiting for batches
    inserted: int = 0  # environment steps of all actors, in unrolls that the table has received
    inserts: int = 0  # the table's own count of these unrolls
    too_old: int = 0  # unrolls dropped because they were older than `max_policy_lag`
    record: Any = None  # record of the updates' check, see `UpdateCheck`; None: no update yet
    adopted: int = -1  # the last version at which another learner's replaced the parameters


def make_params(agent: Agent, seed: int) -> Params:
    """Returns an agent's initial parameters."""
    return jax.jit(lambda key: strong(agent.initial_params(key)))(derive(root(seed), "params"))


def make_learner_state(agent: Agent, params: Params) -> LearnerState:
    """Returns an agent's initial learner state for parameters."""
    return jax.jit(lambda params: strong(agent.initial_learner_state(params)))(params)
