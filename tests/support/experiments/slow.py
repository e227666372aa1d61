"""An experiment whose environments are slow beside its timeouts."""

import time

from distrl.envs import PythonEnvironment
from distrl.experiment import ActorsConfig, Experiment, LearnerConfig
from distrl.goal import Goal
from distrl.replay.config import ReplayConfig
from distrl.testing import CheckingConfig, CountingEnvironment

STEP_S = 0.5


class Slow(CountingEnvironment):
    def step(self, action):
        time.sleep(STEP_S)
        return super().step(action)


def experiment() -> Experiment:
    """A batch takes 30 steps, 15 s, which the learner's timeout is well below."""
    return Experiment(
        PythonEnvironment(Slow, "slow"),
        CheckingConfig(),
        replay=ReplayConfig(unroll_length=30),
        actors=ActorsConfig(num_actors=2, num_envs=1),
        learner=LearnerConfig(batch_size=2, timeout=8.0),
        goal=Goal(max_env_steps=60),
    )
