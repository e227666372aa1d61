"""Learning rates that fall over a run's budget of environment steps."""

import dataclasses
import math
from typing import Any

from distrl.goal import Goal
from distrl.learner_config import LearnerConfig
from distrl.replay.config import ReplayConfig


def learner_steps_per_env_step(replay: ReplayConfig, learner: LearnerConfig) -> float | None:
    """Returns the batches learned from for each environment step; None: no ratio is set."""
    if learner.every_steps is not None:
        return 1 / learner.every_steps
    ratio = 1.0 if replay.table == "queue" else replay.samples_per_insert
    if ratio is None:
        return None
    return ratio / ((replay.period or replay.unroll_length) * learner.batch_size)


def annealed_over_budget(
    agent: Any, goal: Goal, replay: ReplayConfig, learner: LearnerConfig
) -> Any:
    """Returns an algorithm's settings with the `anneal_updates` of the goal's environment steps.

    They are returned as they are if they do not ask for it (`anneal_over_budget`), if the goal
    sets no environment steps, or if the updates do not follow from the steps.
    """
    steps, ratio = goal.max_env_steps, learner_steps_per_env_step(replay, learner)
    if not getattr(agent, "anneal_over_budget", False) or steps is None or ratio is None:
        return agent
    updates = math.ceil(steps * ratio * getattr(agent, "updates_per_batch", 1))
    return dataclasses.replace(agent, anneal_updates=updates)
