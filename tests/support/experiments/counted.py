"""Experiments whose environments keep a count of their steps in a file, which outlives them."""

import os
from pathlib import Path
from typing import Any

import dm_env
import gymnasium
import numpy as np

from distrl.agents.impala import IMPALAConfig
from distrl.config import CheckpointConfig
from distrl.envs import PythonEnvironment
from distrl.experiment import ActorsConfig, Experiment, LearnerConfig
from distrl.goal import Goal
from distrl.replay.buffer import ReplayConfig
from distrl.testing import CheckingConfig, CountingEnvironment
from distrl.transforms.rewards import RewardScale
from tests.support.experiments.long_updates import with_long_updates

NUM_ENVS = 4


class Counted(CountingEnvironment):
    """Counts its steps, resets excluded, in a file of the folder $DISTRL_COUNTS."""

    def __init__(self, seed: int):
        super().__init__(seed)
        path = Path(os.environ["DISTRL_COUNTS"]) / f"{os.getpid()}-{seed}"
        self._steps = np.memmap(path, np.int64, "w+", shape=(1,))

    def step(self, action: Any) -> dm_env.TimeStep:
        self._steps[0] += 1
        return super().step(action)


class CountedCartPole(gymnasium.Wrapper):
    """CartPole-v1, as `Counted`."""

    def __init__(self, seed: int):
        super().__init__(gymnasium.make("CartPole-v1"))
        path = Path(os.environ["DISTRL_COUNTS"]) / f"{os.getpid()}-{seed}"
        self._steps = np.memmap(path, np.int64, "w+", shape=(1,))

    def step(self, action: Any) -> Any:
        self._steps[0] += 1
        return super().step(action)


def total(folder: Path) -> int:
    """Steps that all environments have taken."""
    return sum(int(np.fromfile(path, np.int64)[0]) for path in folder.iterdir())


def experiment(recurrent: bool = False) -> Experiment:
    """Four actors."""
    return Experiment(
        PythonEnvironment(Counted, "counted"),
        CheckingConfig(recurrent),
        ReplayConfig(unroll_length=9, max_size=64),
        ActorsConfig(num_actors=4, num_envs=NUM_ENVS),
        learner=LearnerConfig(batch_size=16),
        goal=Goal(mean_return=None, max_env_steps=10**12),
    )


def cartpole() -> Experiment:
    """IMPALA on CartPole-v1, with a checkpoint every ten seconds."""
    return Experiment(
        PythonEnvironment(CountedCartPole, "CartPole-v1"),
        IMPALAConfig(),
        ReplayConfig(unroll_length=20, max_size=64),
        ActorsConfig(num_actors=4, num_envs=NUM_ENVS),
        learner=LearnerConfig(batch_size=16),
        checkpoint=CheckpointConfig(period=10.0),
        transforms=(RewardScale(0.1),),
        goal=Goal(mean_return=None, max_env_steps=10**12),
    )


def long_updates() -> Experiment:
    """As `experiment`, with updates that count as long ones, given a table with sampling."""
    return with_long_updates(experiment())


def recurrent() -> Experiment:
    """As `experiment`; the state of a stream is checked, too."""
    return experiment(True)
