"""Experiments that check the data path by exact arithmetic; see distrl/testing/."""

import dataclasses
import threading
import time
from collections.abc import Sequence

from jax._src import xla_bridge

from distrl.envs import Pool, PythonEnvironment
from distrl.experiment import ActorsConfig, Experiment, InferenceConfig, LearnerConfig
from distrl.replay.buffer import ReplayConfig
from distrl.seeds import environment_seeds
from distrl.testing import CheckingConfig, CountingEnvironment, LateCountingEnvironment
from distrl.types import TimeStep
from tests.support.experiments.long_updates import with_long_updates


class Early(PythonEnvironment):
    """Refuses to make a pool in a process where JAX has begun to compute: pools may fork."""

    def make_pool(self, num_envs: int, wait_num: int, seeds: Sequence[int]) -> Pool:
        """See `PythonEnvironment`."""
        alone = threading.current_thread() is threading.main_thread()  # not a node's thread
        assert not (alone and xla_bridge.backends_are_initialized())
        return super().make_pool(num_envs, wait_num, seeds)


def experiment(wait_num: int | None = 5, table: str = "queue") -> Experiment:
    """Two actors of eight environments each, asynchronous unless `wait_num` is None."""
    return Experiment(
        Early(CountingEnvironment, "counting"),
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


def overlapping() -> Experiment:
    """As `experiment`, with unrolls that overlap, from a table with a rate limit."""
    replay = ReplayConfig("uniform", 9, 64, samples_per_insert=1.0, period=4)
    return dataclasses.replace(experiment(), replay=replay)


def long_updates() -> Experiment:
    """As `overlapping`, with updates that count as long ones."""
    return with_long_updates(overlapping())


def long_uniform() -> Experiment:
    """As `uniform`, where the learner never waits for a batch, with such updates."""
    return with_long_updates(uniform())


def sharded() -> Experiment:
    """As `experiment`, from a queue on two Reverb servers, one for each actor."""
    made = experiment()
    return dataclasses.replace(
        made, replay=dataclasses.replace(made.replay, num_shards=2, backend="reverb")
    )


def late() -> Experiment:
    """As `experiment`, with rewards that are known two steps later."""
    environment = Early(LateCountingEnvironment, "late_counting")
    return dataclasses.replace(experiment(), environment=environment)


def late_synchronous() -> Experiment:
    """As `late`, but every actor waits for all its environments."""
    return dataclasses.replace(late(), actors=synchronous().actors)


class Uneven(Early):
    """Steps of the first actor's environments take ten times as long as those of the others."""

    def make_pool(self, num_envs: int, wait_num: int, seeds: Sequence[int]) -> Pool:
        """See `PythonEnvironment`."""
        pool = super().make_pool(num_envs, wait_num, seeds)
        slow = any(seeds[0] == environment_seeds(0, "actor", 0, num_envs, k)[0] for k in range(3))
        receive = pool.recv

        def recv() -> TimeStep:
            time.sleep(0.03 if slow else 0.003)
            return receive()

        pool.recv = recv  # type: ignore[method-assign]
        return pool


def rounds() -> Experiment:
    """Three actors in rounds, the first of which is slow."""
    return Experiment(
        Uneven(CountingEnvironment, "counting"),
        CheckingConfig(),
        ReplayConfig(unroll_length=9, max_size=64),
        ActorsConfig(num_actors=3, num_envs=4, min_actors=2),
        learner=LearnerConfig(batch_size=4),
    )


def stateless_rounds() -> Experiment:
    """As `rounds`, for a service of inference."""
    return dataclasses.replace(rounds(), agent=CheckingConfig(recurrent=False))
