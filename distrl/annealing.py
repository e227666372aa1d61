"""Learning rates that fall over a run's budget of environment steps."""

import math
from typing import Any

from distrl.agents.settings import algorithm, with_settings
from distrl.envs.multi_agent.environment import steps_per_env_step
from distrl.errors import ConfigError
from distrl.goal import Goal
from distrl.learner_config import LearnerConfig
from distrl.replay.config import ReplayConfig


def learner_steps_per_env_step(
    replay: ReplayConfig, learner: LearnerConfig, per_env_step: float = 1
) -> float | None:
    """Returns the batches learned from for each environment step; None: no ratio is set.

    Args:
      replay: the table's settings.
      learner: the learner's settings.
      per_env_step: time steps that are stored for each environment step; see `steps_per_env_step`.
    """
    if learner.every_steps is not None:
        return 1 / learner.every_steps
    ratio = 1.0 if replay.table == "queue" else replay.samples_per_insert
    if ratio is None:
        return None
    steps = (replay.period or replay.unroll_length) * learner.batch_size
    return ratio * per_env_step / steps


def annealed_over_budget(
    agent: Any, goal: Goal, replay: ReplayConfig, learner: LearnerConfig, per_env_step: float = 1
) -> Any:
    """Returns an algorithm's settings with the `anneal_updates` of the goal's environment steps.

    Steps that fill a table up to its `min_size_to_sample` make no updates. The updates that its
    `error_buffer` admits beyond the ratio are not counted: that many of the last have a rate of 0.

    Returns them unchanged if they do not ask for it (`anneal_over_budget`), if the goal sets no
    environment steps, or if no ratio of updates to steps is set.

    Raises:
      ConfigError: unrolls are whole episodes, whose length is not known.
    """
    steps, ratio = goal.max_env_steps, learner_steps_per_env_step(replay, learner, per_env_step)
    config = algorithm(agent)
    if not getattr(config, "anneal_over_budget", False) or steps is None or ratio is None:
        return agent
    if replay.whole_episodes:
        raise ConfigError(
            "agent.anneal_over_budget: how many updates a budget makes does not follow from its "
            "steps where unrolls are whole episodes; set agent.anneal_updates"
        )
    before = 0.0
    if replay.table != "queue":  # its first batch comes once it may be sampled
        rows = replay.min_size_to_sample * (replay.period or replay.unroll_length)
        before = rows / per_env_step
    updates = math.ceil((steps - before) * ratio * getattr(config, "updates_per_batch", 1))
    return with_settings(agent, anneal_updates=max(1, updates))


def annealed_agent(task: Any) -> Any:
    """Returns `annealed_over_budget` for the parts of a `Task`."""
    per_env_step = steps_per_env_step(task.environment, task.agents)
    return annealed_over_budget(task.agent, task.goal, task.replay, task.learner, per_env_step)
