"""Learning switched off: an agent whose updates change nothing."""

import copy
from typing import Any

from distrl.agents.agent import Agent, LearnerState, Logs
from distrl.types import Params, Trajectory


def without_learning(agent: Agent) -> Agent:
    """Returns an agent that learns nothing: its updates give their logs and change nothing.

    Not even what follows from the number of environment steps changes, such as epsilon.
    """

    def learner_step(
        params: Params, learner_state: LearnerState, batch: Trajectory
    ) -> tuple[Params, LearnerState, Logs]:
        _, _, logs = agent.learner_step(params, learner_state, batch)
        return params, learner_state, logs

    held: Any = copy.copy(agent)
    held.learner_step = learner_step
    held.with_env_steps = lambda params, env_steps: params
    return held
