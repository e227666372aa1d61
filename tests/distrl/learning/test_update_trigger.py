"""What starts an update: exact counts, by the arrival of unrolls and by the actors' steps."""

import dataclasses

import pytest

from distrl.envs import MultiAgentEnvironment, PythonEnvironment
from distrl.errors import ConfigError
from distrl.experiment import ActorsConfig, Experiment, LearnedPolicy, LearnerConfig
from distrl.learning.update_trigger import StepStart, started_by
from distrl.programs.single_process_parts import SingleProcess
from distrl.replay.buffer import ReplayConfig
from distrl.replay.table.rate_limiter import RateLimiter
from distrl.testing import CheckingConfig, CountingAgents, CountingEnvironment
from tests.support.experiments import checking

UNIFORM = ReplayConfig("uniform", 3, 64, min_size_to_sample=10)


@pytest.mark.parametrize("every", [1, 2, 3, 7, 50])
@pytest.mark.parametrize("batch_size", [1, 3, 64])
def test_every_so_many_unrolls_start_one_update(every, batch_size):
    """Of a table of 10: the first with the tenth, then one with each `every` more, exactly."""
    learner = LearnerConfig(batch_size, every_unrolls=every)
    limiter = RateLimiter(started_by(learner, UNIFORM, 1).limits(batch_size))
    updates = 0
    for inserts in range(1, 5000):
        assert limiter.can_insert(1, 10**6) == 1
        limiter.inserts = inserts
        while limiter.can_sample(batch_size):
            limiter.samples += batch_size
            updates += 1
        assert updates == (0 if inserts < 10 else 1 + (inserts - 10) // every)


@pytest.mark.parametrize(("every", "period"), [(4, None), (6, None), (5, 2), (7, 1)])
def test_every_so_many_steps_start_one_update_as_unrolls_arrive(every, period):
    replay = dataclasses.replace(UNIFORM, period=period)
    limiter = RateLimiter(started_by(LearnerConfig(16, every_steps=every), replay, 1).limits(16))
    updates = 0
    for inserts in range(1, 3000):
        limiter.inserts = inserts
        while limiter.can_sample(16):
            limiter.samples += 16
            updates += 1
        steps = (inserts - 10) * (period or 3)
        assert updates == (0 if inserts < 10 else 1 + steps // every)


def test_the_actors_wait_for_a_learner_that_is_slow():
    replay = started_by(LearnerConfig(4, every_unrolls=2), UNIFORM, 6)
    limiter = RateLimiter(replay.limits(4))
    limiter.inserts = 10
    while limiter.can_insert(1, 10**6):
        limiter.inserts += 1
    assert limiter.error - limiter.limits.max_diff > -2
    replay.check(4, 6)


def test_a_start_without_a_batch_is_left_out():
    start = StepStart(4)
    assert not start.is_due(9, has_batch=False)
    assert not start.is_due(11, has_batch=True)
    assert start.is_due(21, has_batch=True)  # at 12, 16 and 20
    for _ in range(3):
        assert start.is_due(21, has_batch=True)
        start.done()
    assert not start.is_due(21, has_batch=True)


def test_in_one_process_by_each_step():
    """Eight environments a step: with every 4 steps two updates, with every 24 one in three."""
    for every in (4, 24):
        made = dataclasses.replace(
            checking.synchronous(),
            environment=PythonEnvironment(CountingEnvironment, "counting"),
            replay=ReplayConfig("uniform", 3, 64, min_size_to_sample=16),
            actors=ActorsConfig(num_actors=1, num_envs=8),
            learner=LearnerConfig(batch_size=4, every_steps=every),
        )
        with SingleProcess(made, printer=lambda line: None) as parts:
            (task,) = parts.tasks.values()
            while task.learner.version == 0:
                parts.run_once()
            first = parts.actor.acted
            while task.learner.version < 9:
                parts.run_once()
                updates = 1 + parts.actor.acted // every - first // every
                owed = updates - task.learner.version
                assert 0 <= owed <= max(1, 8 // every)


def test_a_queue_is_refused_and_so_are_two_starts():
    made = checking.synchronous()
    with pytest.raises(ConfigError, match="every_steps=4 is for a table with sampling"):
        dataclasses.replace(made, learner=LearnerConfig(16, every_steps=4))
    with pytest.raises(ConfigError, match="both say what starts an update"):
        LearnerConfig(every_steps=4, every_unrolls=1)
    with pytest.raises(ConfigError, match="every_unrolls must be a whole number"):
        LearnerConfig(every_unrolls=0)


def test_each_policy_has_its_own_schedule():
    hunters = LearnedPolicy(
        CheckingConfig(), UNIFORM, LearnerConfig(4, every_unrolls=2, max_policy_lag=3)
    )
    prey = LearnedPolicy(CheckingConfig(), ReplayConfig(unroll_length=3), LearnerConfig(4))
    made = Experiment(
        MultiAgentEnvironment(CountingAgents),
        actors=ActorsConfig(num_actors=1, num_envs=2),
        policies={"hunters": hunters, "prey": prey},
        policy_of={"a": "hunters", "b": "hunters", "c": "prey"},
    )
    first, second = made.tasks.values()
    assert (first.replay.samples_per_insert, first.replay.strict_ratio) == (2.0, True)
    assert (first.learner.max_policy_lag, second.learner.max_policy_lag) == (3, None)
    assert second.replay.samples_per_insert is None
    assert made.policies["hunters"].replay == UNIFORM  # as given
    with pytest.raises(ConfigError, match="no rounds with environments with several"):
        dataclasses.replace(made, actors=dataclasses.replace(made.actors, min_actors=1))


def test_steps_are_the_environments_whatever_the_number_of_agents():
    learner = LearnerConfig(4, every_steps=6)
    # 6 steps are 2 unrolls of one agent, 6 of three, and 1 of one that acts every other time.
    for agents, unrolls in ((1, 2), (3, 6), (0.5, 1)):
        replay = started_by(learner, UNIFORM, 2, agents)
        assert replay.samples_per_insert == 4 / unrolls
