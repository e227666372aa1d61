"""An experiment whose environments go to other folders, as simulators that load files do."""

import os
import tempfile

import dm_env
import numpy as np

from distrl.envs import PythonEnvironment
from distrl.experiment import ActorsConfig, Experiment, LearnerConfig
from distrl.testing import CheckingConfig, CountingEnvironment


class Wandering(CountingEnvironment):
    """Goes to another folder when it is made, and at each step."""

    def __init__(self, seed: int):
        os.chdir(tempfile.gettempdir())
        super().__init__(seed)

    def step(self, action: np.ndarray) -> dm_env.TimeStep:
        os.chdir("/")
        return super().step(action)


def experiment() -> Experiment:
    """Returns the experiment."""
    return Experiment(
        PythonEnvironment(Wandering, "wandering"),
        CheckingConfig(),
        actors=ActorsConfig(num_actors=2, num_envs=8),
        learner=LearnerConfig(batch_size=16),
    )
