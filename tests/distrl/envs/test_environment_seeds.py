"""Every environment of a run has its own seed, and reports it."""

import dataclasses
import types

import numpy as np
import pytest

from distrl import seeds
from distrl.envs import PythonEnvironment
from distrl.errors import ConfigError
from distrl.experiment import ActorsConfig, EvaluatorConfig, Experiment, LearnerConfig
from distrl.programs.pools import actor_pool, evaluator_pool, shared_pool
from distrl.replay.config import ReplayConfig
from distrl.testing import CheckingConfig, CountingEnvironment

RUN = 12345


def test_all_seeds_of_a_run_are_distinct():
    """16 actors and an evaluator, 64 environments each, 32 lives, 7 restarts of each."""
    drawn = np.concatenate(
        [
            np.array(seeds.environment_seeds(RUN, group, index, 64, life))
            for group, count in (("actor", 16), ("evaluator", 1))
            for index in range(count)
            for life in range(32)
        ]
    )
    restarted = [seeds.restart_seed(seed, n) for seed in drawn[::7].tolist() for n in range(1, 8)]
    every = np.concatenate([drawn, restarted])
    assert len(np.unique(every)) == len(every)
    assert every.min() >= 0 and every.max() < 2**31
    assert seeds.restart_seed(int(drawn[0]), 0) == drawn[0]


def test_no_life_and_no_restart_has_an_earlier_ones_seeds():
    lives = [*range(100), 2**20 + 11, 2**20 + 43]
    firsts = [seeds.environment_seeds(RUN, "actor", 3, 1, life)[0] for life in lives]
    assert len(set(firsts)) == len(lives)
    restarted = [seeds.restart_seed(seed, n) for seed in firsts for n in range(1, 100)]
    every = {*firsts, *restarted}
    assert len(every) == 100 * len(lives)
    assert min(every) >= 0 and max(every) < 2**31
    assert restarted == [seeds.restart_seed(seed, n) for seed in firsts for n in range(1, 100)]


@pytest.mark.parametrize("run", [0, 1, 2**40, 907])  # some of whose seeds pass 2**31
def test_seeds_are_distinct_and_consecutive_for_any_run(run):
    by_node = [seeds.environment_seeds(run, "actor", i, 4096, 31) for i in (0, 1, 1023)]
    by_node.append(seeds.environment_seeds(run, "evaluator", 1023, 4096, 31))
    for node in by_node:
        assert ((np.diff(node) - 1) % 2**31 == 0).all()
    every = np.concatenate(by_node)
    assert len(np.unique(every)) == len(every)


def test_too_many_are_refused():
    with pytest.raises(ConfigError, match=r"1024 actors of 4096 environments"):
        seeds.environment_seeds(RUN, "actor", 1024, 1)


def experiment(num_actors):
    return Experiment(
        environment=PythonEnvironment(CountingEnvironment, "counting"),
        agent=CheckingConfig(),
        replay=ReplayConfig(max_size=64),
        actors=ActorsConfig(num_actors=num_actors, num_envs=3),
        learner=LearnerConfig(batch_size=4),
        evaluator=EvaluatorConfig(num_evaluators=1, num_envs=2),
        seed=RUN,
    )


class Recording:
    """In an experiment's place: keeps the seeds that its pools were made with."""

    def __init__(self, of):
        self.seed, self.actors, self.evaluator = of.seed, of.actors, of.evaluator
        self.evaluation_environment = None
        self.environment = self
        self.seeds = []

    def make_pool(self, num_envs, wait_num, seeds):
        assert len(seeds) == num_envs
        self.seeds.append(tuple(seeds))
        return types.SimpleNamespace(name="counting", num_envs=num_envs)


def test_an_actors_seeds_are_the_same_in_every_program():
    """`heavy_env` and `light_env` make an actor's pool by the same call."""
    for num_actors in (1, 2, 5):
        recording = Recording(experiment(num_actors))
        shared_pool(recording, lambda line: None)
        for index in range(num_actors):
            actor_pool(recording, index, lambda line: None)
        evaluator_pool(recording, lambda line: None)
        together, *apart, evaluation = recording.seeds
        assert together == tuple(seed for part in apart for seed in part)
        assert apart[0] == seeds.environment_seeds(RUN, "actor", 0, 3)
        assert not set(evaluation) & set(together)


def test_a_new_life_has_new_seeds():
    recording = Recording(experiment(2))
    actor_pool(recording, 1, lambda line: None, life=0)
    actor_pool(recording, 1, lambda line: None, life=1)
    first, second = recording.seeds
    assert not set(first) & set(second)


def test_the_line_in_the_log():
    lines = []
    for pool in (
        shared_pool(experiment(2), lines.append),
        evaluator_pool(experiment(2), lines.append),
    ):
        pool.close()
    first = seeds.environment_seeds(RUN, "actor", 1, 3)
    assert lines[1] == (
        f"actor/1: 3 environments counting in a LoopPool, seeds {first[0]} to {first[-1]}, life 0"
    )
    assert len(lines) == 3 and lines[2].startswith("evaluator/0: 2 environments counting")


def test_envpool_counts_on_from_the_first_seed():
    from distrl.envs import NativeEnvironment

    lines = []
    native = dataclasses.replace(experiment(2), environment=NativeEnvironment("CartPole-v1"))
    shared_pool(native, lines.append).close()
    first = seeds.environment_seeds(RUN, "actor", 0, 3)[0]
    assert f"NativePool, seeds {first} to {first + 2}," in lines[0]
    assert f"NativePool, seeds {first + 3} to {first + 5}," in lines[1]
