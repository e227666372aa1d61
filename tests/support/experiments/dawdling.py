"""An experiment in lockstep whose environments take their time, another one in every run."""

import time
from typing import Any

import dm_env
import numpy as np
from dm_env import specs as dm_specs

from distrl.agents.dqn import DQNConfig
from distrl.envs import PythonEnvironment
from distrl.experiment import ActorsConfig, Experiment, LearnerConfig
from distrl.replay.buffer import ReplayConfig
from distrl.testing import CountingEnvironment


class Dawdling(CountingEnvironment):
    """A CountingEnvironment of two actions, of which now and then one takes 0.1 s."""

    def __init__(self, seed: int):
        """Args: seed: see CountingEnvironment."""
        super().__init__(seed)
        self._dawdle = np.random.default_rng()

    def step(self, action: Any) -> dm_env.TimeStep:
        """See dm_env."""
        if self._dawdle.random() < 0.05:
            time.sleep(0.1)
        return super().step(action)

    def action_spec(self) -> dm_specs.DiscreteArray:
        """See dm_env."""
        return dm_specs.DiscreteArray(2, np.int32, "action")


def experiment() -> Experiment:
    """Two actors; a learner that could sample before a round is complete, if it were let."""
    return Experiment(
        PythonEnvironment(Dawdling, "dawdling"),
        DQNConfig(),
        ReplayConfig("prioritized", 4, 64, 4, samples_per_insert=2, error_buffer=40),
        ActorsConfig(num_actors=2, num_envs=4),
        learner=LearnerConfig(batch_size=4),
        lockstep=True,
    )
