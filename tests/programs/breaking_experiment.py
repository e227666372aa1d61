"""An experiment whose observations break their spec: at once, or only after some steps."""

import dm_env
import numpy as np

from distrl.envs import PythonEnvironment
from distrl.experiment import ActorsConfig, Experiment, LearnerConfig
from distrl.testing import CheckingConfig, CountingEnvironment

GOOD_STEPS = 500  # of an environment: some batches are learned from before


class Late(CountingEnvironment):
    """Its observations become float64, and stay what they were in all else."""

    def __init__(self, seed: int, good_steps: int = GOOD_STEPS):
        super().__init__(seed)
        self._left = good_steps

    def reset(self) -> dm_env.TimeStep:
        return self._break(super().reset())

    def step(self, action: np.ndarray) -> dm_env.TimeStep:
        return self._break(super().step(action))

    def _break(self, timestep: dm_env.TimeStep) -> dm_env.TimeStep:
        self._left -= 1
        if self._left >= 0:
            return timestep
        return timestep._replace(observation=timestep.observation.astype(np.float64))


def _experiment(environment: PythonEnvironment) -> Experiment:
    return Experiment(
        environment,
        CheckingConfig(),
        actors=ActorsConfig(num_actors=2, num_envs=8),
        learner=LearnerConfig(batch_size=16),
    )


def late() -> Experiment:
    """Breaks in the midst of training."""
    return _experiment(PythonEnvironment(Late, "late"))


def at_once() -> Experiment:
    """Breaks at the first observation."""
    return _experiment(PythonEnvironment(lambda seed: Late(seed, 0), "broken"))
