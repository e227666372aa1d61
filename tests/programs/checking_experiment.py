"""Experiments that check the data path by exact arithmetic; see distrl/testing.py."""

from distrl.envs import PythonEnvironment
from distrl.experiment import ActorsConfig, Experiment, InferenceConfig, LearnerConfig
from distrl.replay.buffer import ReplayConfig
from distrl.testing import CheckingConfig, CountingEnvironment


def experiment(wait_num: int | None = 5, table: str = "queue") -> Experiment:
    """Two actors of eight environments each, asynchronous unless `wait_num` is None."""
    return Experiment(
        PythonEnvironment(CountingEnvironment, "counting"),
        CheckingConfig(),
        ReplayConfig(table=table, unroll_length=9, max_size=64),
        ActorsConfig(num_actors=2, num_envs=8, wait_num=wait_num),
        InferenceConfig(sync_interval=3),
        LearnerConfig(batch_size=16),
    )


def synchronous() -> Experiment:
    """As `experiment`, but every actor waits for all its environments."""
    return experiment(wait_num=None)


def uniform() -> Experiment:
    """As `experiment`, from a table sampled uniformly."""
    return experiment(table="uniform")
