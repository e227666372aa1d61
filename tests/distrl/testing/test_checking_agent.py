"""The checks of distrl.testing detect each mutation of a correct batch."""

import dataclasses
import itertools

import jax
import numpy as np
import pytest

from distrl.actor import Actor
from distrl.envs import NativeEnvironment, PythonEnvironment
from distrl.errors import ConfigError
from distrl.experiment import ActorsConfig, EvaluatorConfig, Experiment, LearnerConfig
from distrl.learner import Learner
from distrl.metrics.lag_counts import LagCounts
from distrl.programs.pools import evaluator_pool
from distrl.programs.single_process_parts import SingleProcess
from distrl.replay.buffer import ReplayConfig
from distrl.testing import CheckingConfig, CountingEnvironment, LateCountingEnvironment, errors

EXPERIMENT = Experiment(
    PythonEnvironment(CountingEnvironment),
    CheckingConfig(),
    ReplayConfig(unroll_length=7, max_size=64),
    ActorsConfig(num_actors=2, num_envs=8, wait_num=5),
    learner=LearnerConfig(batch_size=16),
)


@pytest.fixture(scope="module")
def batch():
    parts = SingleProcess(EXPERIMENT)
    for _ in range(6):
        parts.run_once()
    (task,) = parts.tasks.values()
    while not task.replay.can_sample():
        parts.actor.step()
    return task.replay.sample(1.0).trajectory


def wrong(batch):
    counts = errors(batch, recurrent=True)
    assert counts.pop("checked") > 0
    return {name for name, count in counts.items() if int(count)}


def test_a_correct_batch_has_no_errors(batch):
    assert not wrong(batch)
    assert batch.version.min() > 0


@pytest.mark.parametrize("environment", [CountingEnvironment, LateCountingEnvironment])
@pytest.mark.parametrize("wait_num", [5, None])
@pytest.mark.parametrize("period", [1, 3, 5])
def test_overlapping_unrolls_have_no_errors(environment, wait_num, period):
    parts = SingleProcess(
        dataclasses.replace(
            EXPERIMENT,
            environment=PythonEnvironment(environment),
            replay=ReplayConfig("uniform", 7, 64, samples_per_insert=1.0, period=period),
            actors=dataclasses.replace(EXPERIMENT.actors, wait_num=wait_num),
        )
    )
    with parts:
        for _ in range(12):
            parts.run_once()
        (task,) = parts.tasks.values()
        report = task.learner.take_report()
    assert report["checked"] > 500
    assert not {name for name, count in report.items() if name.startswith("wrong_") and count}


@pytest.mark.parametrize(
    ("expected", "change"),
    [
        ("wrong_version", lambda b: b._replace(version=b.version - 1)),
        ("wrong_state", lambda b: b._replace(state=np.roll(b.state, 1, axis=0))),
        ("wrong_state", lambda b: b._replace(state=b.state + 1)),
        ("wrong_echo", lambda b: b._replace(action=np.roll(b.action, 1, axis=0) + 1)),
        (
            "wrong_boundary",
            lambda b: b._replace(timestep=b.timestep._replace(discount=b.timestep.discount * 0)),
        ),
        (
            "wrong_boundary",
            lambda b: b._replace(timestep=b.timestep._replace(discount=b.timestep.discount**0)),
        ),
        (
            "wrong_count",
            lambda b: b._replace(
                timestep=b.timestep._replace(
                    observation=np.roll(b.timestep.observation, 1, axis=1)
                    * (np.arange(len(b.version))[:, None, None] % 2)
                    + b.timestep.observation * (1 - np.arange(len(b.version))[:, None, None] % 2)
                )
            ),
        ),
        (
            "wrong_reward",
            lambda b: b._replace(timestep=b.timestep._replace(reward=b.timestep.reward + 1)),
        ),
    ],
)
def test_each_mutation_is_detected(batch, expected, change):
    assert expected in wrong(jax.tree.map(np.array, change(batch)))


def lag_columns(report):
    counted = LagCounts()
    counted.merge(report["policy_lags"])
    return counted.columns()


def test_policy_lag_is_measured_on_what_is_consumed():
    """The actor acts until there is a batch, so the lag is bounded."""
    parts = SingleProcess(EXPERIMENT)
    for _ in range(10):
        parts.run_once()
    (task,) = parts.tasks.values()
    report = task.learner.take_report()
    assert report["learner_steps"] == 10
    # An unroll begins under the newest parameters, or under those before.
    figures = lag_columns(report)
    assert 0 <= figures["policy_lag_mean"] <= figures["policy_lag_p95"] <= figures["policy_lag_max"]
    assert figures["policy_lag_max"] <= 4
    assert "policy_lags" not in task.learner.take_report()


class ConstantReplay:
    """A replay that always returns the same sample."""

    is_prioritized = False

    def __init__(self, sample):
        self._sample = sample

    def make_dataset(self, timeout):
        return itertools.repeat(self._sample)


def test_learner_counts_real_transitions_and_lag(batch):
    from distrl.types import Sample

    sample = Sample(batch, np.arange(16, dtype=np.uint64))
    learner = Learner(EXPERIMENT.make_agent(), ConstantReplay(sample), seed=0)
    assert learner.get_variables(0) is None
    for _ in range(3):
        learner.step()
    real = int((batch.timestep.step_type[:-1] != 2).sum())
    assert learner.trained_steps == 3 * real
    version, params = learner.get_variables(2)
    assert (version, int(params["version"])) == (3, 3)
    # Versions from an earlier life of the learner may be newer: they have no lag.
    lags = np.concatenate([np.maximum(v - batch.version[:-1], 0).ravel() for v in range(3)])
    figures = lag_columns(learner.take_report())
    assert figures["policy_lag_mean"] == pytest.approx(lags.mean())
    assert figures["policy_lag_max"] == lags.max()


def test_an_actor_runs_until_it_should_stop_and_reports_all_steps():
    parts = SingleProcess(EXPERIMENT)
    reports = []
    left = [30]

    def should_stop():
        left[0] -= 1
        return left[0] < 0

    class CountingReplay:
        steps = 0

        def needs_state(self, streams, life):
            return False

        def add(self, streams, timestep, inference, life):
            self.steps += int((timestep.step_type != 0).sum())

        def flush(self):
            pass

    replay = CountingReplay()
    pool = EXPERIMENT.environment.make_pool(4, 4, range(4))
    actor = Actor(pool, next(iter(parts.tasks.values())).inferencer, replay)
    actor.run(should_stop, reports.append, report_interval=0.0)
    assert sum(report["env_steps"] for report in reports) == replay.steps


@pytest.mark.parametrize(
    ("message", "make"),
    [
        ("replay.max_size=8 unrolls can never hold", {"replay": ReplayConfig(max_size=8)}),
        ("would stall", {"replay": ReplayConfig(max_size=17)}),
        ("GB", {"replay": ReplayConfig(max_size=10**9)}),
        ("seed must be a whole number, 0 or more", {"seed": -1}),
    ],
)
def test_an_invalid_experiment_is_refused(message, make):
    options = {"actors": EXPERIMENT.actors, "learner": EXPERIMENT.learner, **make}
    with pytest.raises(ConfigError, match=message):
        Experiment(EXPERIMENT.environment, EXPERIMENT.agent, **options)


def test_invalid_sizes_are_refused_with_their_names():
    with pytest.raises(ConfigError, match=r"actors.wait_num must lie between 1 and"):
        ActorsConfig(num_envs=4, wait_num=5)
    with pytest.raises(
        ConfigError, match=r"learner.batch_size must be a whole number, 1 or more; got 0"
    ):
        LearnerConfig(batch_size=0)


def test_the_evaluator_may_have_another_environment():
    other = PythonEnvironment(CountingEnvironment, "another")
    experiment = dataclasses.replace(
        EXPERIMENT,
        evaluation_environment=other,
        evaluator=EvaluatorConfig(num_evaluators=1, num_envs=2, episodes=2),
    )
    lines: list[str] = []
    evaluator_pool(experiment, lines.append).close()
    assert "2 environments another" in lines[0]
    with pytest.raises(ConfigError, match=r"evaluation_environment: CartPole-v1 has "):
        dataclasses.replace(EXPERIMENT, evaluation_environment=NativeEnvironment("CartPole-v1"))
