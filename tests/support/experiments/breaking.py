"""An experiment whose observations break their spec: at once, or only after some steps."""

import dm_env
import numpy as np

from distrl.envs import PythonEnvironment
from distrl.experiment import ActorsConfig, Experiment, LearnerConfig
from distrl.testing import CheckingConfig, CountingEnvironment

GOOD_STEPS = 500  # of an environment: some batches are learned from before


class Late(CountingEnvironment):
    """Its observations lose a number, and stay what they were in all else."""

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
        return timestep._replace(observation=timestep.observation[:3])


class Raising(Late):
    """Fails in a function of its own, and says more than one line."""

    def _break(self, timestep: dm_env.TimeStep) -> dm_env.TimeStep:
        self._left -= 1
        if self._left < 0:
            self._look_up("shelf")
        return timestep

    def _look_up(self, name: str) -> None:
        raise KeyError(name)


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


def raising() -> Experiment:
    """Raises in the midst of training."""
    return _experiment(PythonEnvironment(Raising, "raising"))


def at_once() -> Experiment:
    """Breaks at the first observation."""
    return _experiment(PythonEnvironment(lambda seed: Late(seed, 0), "broken"))
