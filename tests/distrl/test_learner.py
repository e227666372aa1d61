"""The learner counts the environment steps of all actors, and epsilon follows them."""

import itertools

import numpy as np
import pytest
from dm_env import specs as dm_specs

from distrl.agents.dqn import DQNConfig
from distrl.agents.exploration import EpsilonSchedule
from distrl.agents.networks import NetworkConfig
from distrl.checkpointing.checkpointer import Checkpointer
from distrl.checkpointing.resume_point import restore_learner
from distrl.config import CheckpointConfig
from distrl.errors import SpecError
from distrl.goal import Goal
from distrl.learner import Learner
from distrl.learning.agent_logs import is_taken
from distrl.learning.inserted_steps import InsertedSteps
from distrl.learning.random_batches import NoReplay, random_batch
from distrl.metrics.lag_counts import LagCounts
from distrl.metrics.monitor import Monitor
from distrl.rounds.collection import CollectionRounds
from distrl.specs import EnvironmentSpec
from distrl.transforms import RewardScale, TransformedAgent
from distrl.types import Sample, StepType

SPEC = EnvironmentSpec(dm_specs.Array((4,), np.float32), dm_specs.DiscreteArray(3, np.int32))
EPSILON = EpsilonSchedule(1.0, 0.0, steps=1_000)
LENGTH, BATCH = 5, 6
KEYS = np.arange(BATCH, dtype=np.uint64)
AGENT = TransformedAgent(
    DQNConfig(NetworkConfig(hidden_sizes=(4,)), epsilon=EPSILON).make(SPEC),
    (RewardScale(0.1),),
    SPEC,
)


def batch_with_resets(resets):
    """A batch of which so many rows, of 30, lead from one episode's end to the next one's start."""
    batch = random_batch(AGENT, LENGTH, BATCH)
    step_type = np.full_like(batch.timestep.step_type, StepType.MID)
    step_type[0, :resets], step_type[1, :resets] = StepType.LAST, StepType.FIRST
    return batch._replace(timestep=batch.timestep._replace(step_type=step_type))


def epsilons(learner, inserts, resets=()):
    """Returns epsilon of the parameters that actors get, after a sample at each of `inserts`."""
    seen = []
    for count, number in itertools.zip_longest(inserts, resets, fillvalue=0):
        learner.update(Sample(batch_with_resets(number), KEYS, count))
        seen.append(float(learner.variables[1]["agent"]["epsilon"]))
    return seen


def test_epsilon_follows_the_unrolls_that_reached_the_table():
    learner = Learner(AGENT, NoReplay(), seed=0)
    assert float(learner.variables[1]["agent"]["epsilon"]) == 1
    # 5 steps an unroll, however many updates are made of them.
    assert epsilons(learner, [20, 20, 40, 100]) == pytest.approx([0.9, 0.9, 0.8, 0.5])
    assert (learner.state().inserted, learner.state().inserts) == (500, 100)
    saved = learner.state()
    # A table that begins again does not take epsilon back.
    assert epsilons(learner, [10, 30, 500]) == pytest.approx([0.5, 0.4, 0.0])
    again = Learner(AGENT, NoReplay(), seed=1)
    again.restore(saved)
    assert epsilons(again, [120]) == pytest.approx([0.4])


def test_rows_between_episodes_are_no_steps():
    learner = Learner(AGENT, NoReplay(), seed=0)
    # 100 rows inserted, 30 of them learned from, of which 6 are resets; then 200 and 60, with 6.
    assert epsilons(learner, [20, 40, 60], [6, 0, 3]) == pytest.approx([0.92, 0.82, 0.73])
    saved = learner.state()
    assert saved.inserted == 270
    again = Learner(AGENT, NoReplay(), seed=1)
    again.restore(saved)
    assert epsilons(again, [80, 100], [3, 3]) == pytest.approx([0.64, 0.55])
    # The estimate of a table that is sampled from may fall: epsilon does not rise.
    assert epsilons(again, [101, 102], [6, 6])[0] < 0.5501


class Prioritized(NoReplay):
    """A table that samples by priority, which takes new ones."""

    is_prioritized = True

    def update_priorities(self, keys, priorities):
        del keys, priorities


def test_the_share_of_steps_is_of_unrolls_that_priorities_chose_for_the_first_time():
    learner = Learner(AGENT, Prioritized(), seed=0)
    assert epsilons(learner, [20], [6]) == pytest.approx([0.92])
    # They come again, but for those whose priority is 0 as they have no step.
    assert epsilons(learner, [20, 20, 40], [0, 0, 0]) == pytest.approx([0.92, 0.92, 0.84])
    assert learner.trained_steps == 24 + 3 * 30
    learner.update(Sample(batch_with_resets(0), KEYS + np.uint64(2), 40))  # of 6 unrolls, 2 are new
    assert learner.state().inserted == 200 * 34 // 40


def test_a_replay_is_asked_for_its_kind_while_a_device_computes_the_update():
    calls = []

    class Asked(Prioritized):
        @property
        def is_prioritized(self):
            calls.append("asked")
            return True

    learner = Learner(AGENT, Asked(), seed=0)
    update = learner._update
    learner._update = lambda *args: calls.append("update") or update(*args)
    epsilons(learner, [20, 20])
    assert calls == ["asked", "update", "asked", "update", "asked"]


@pytest.mark.parametrize("first", [0, 2**63 - 5, 2**64 - 10_001])
def test_unrolls_are_told_apart_by_their_keys(first):
    steps = InsertedSteps()
    keys = np.uint64(first) + np.arange(10_000, dtype=np.uint64)
    real = np.ones((1, 10_000), bool)
    assert steps.shown(keys, real, True) == (10_000, 10_000)
    assert steps.shown(keys, real, True) == (0, 0)
    assert steps.shown(keys[::-1], real, False) == (10_000, 10_000)


def test_a_table_that_begins_again_when_a_run_resumes_has_its_steps_counted(tmp_path):
    learner = Learner(AGENT, NoReplay(), seed=0)
    epsilons(learner, [100])
    counters = {"mean_return": None, "full_window": False}
    checkpoints = Checkpointer(
        tmp_path, CheckpointConfig(replay=False), learner, None, lambda: counters, {}
    )
    path = checkpoints.save()
    for inserts, want in ((None, 0.5), (0, 0.45), (99, 0.45), (100, 0.5)):
        again = Learner(AGENT, NoReplay(), seed=1)
        restore_learner(again, path, inserts)
        assert epsilons(again, [10]) == pytest.approx([want]), inserts


def test_steps_of_overlapping_unrolls_count_once():
    assert epsilons(Learner(AGENT, NoReplay(), seed=0, period=2), [100]) == pytest.approx([0.8])


class Logging:
    """An agent with logs of its own."""

    def __init__(self, **logs):
        self._logs = logs

    def __getattr__(self, name):
        return getattr(AGENT, name)

    def learner_step(self, params, state, batch):
        params, state, logs = AGENT.learner_step(params, state, batch)
        return params, state, {**logs, **self._logs}


@pytest.mark.parametrize(
    ("logs", "message"),
    [
        ({"env_steps": 1.0}, "'env_steps' has a name of distrl's own"),
        ({"mean_return": 1.0}, "'mean_return' has a name of distrl's own"),
        ({"rounds": 1.0}, "'rounds' has a name of distrl's own"),
        ({"metrics": 1.0}, "'metrics' has a name of distrl's own"),
        ({"batches": 1.0}, "'batches' has a name of distrl's own"),
        ({"policy_lag_mean": 1.0}, "'policy_lag_mean' has a name of distrl's own"),
        ({"losses": {"q": 1.0}}, "'losses' must be one number, got dict: give each number a name"),
        ({"pair": (1.0, 2.0)}, "'pair' must be one number, got tuple"),
        ({"absent": None}, "'absent' must be one number, got NoneType"),
        ({"each": np.ones(3)}, r"'each' must be one number, got an array of shape \[3\]"),
    ],
)
def test_logs_of_an_agent_leave_the_counts_alone(logs, message):
    learner = Learner(Logging(**logs), NoReplay(), seed=0)
    learner.update(Sample(random_batch(AGENT, LENGTH, BATCH), KEYS, 20))
    with pytest.raises(SpecError, match=message):
        learner.take_report()


def test_all_columns_of_metrics_are_distrls_own():
    ends = []
    monitor = Monitor(Goal(), lambda *end: ends.append(end), printer=lambda line: None)
    rounds = CollectionRounds(2, min_actors=1, grace=0.0, keep_late=True)
    names = [*monitor.snapshot(), *rounds.counts()]
    assert not [name for name in names if not is_taken(name)]


def test_the_lags_are_those_of_steps():
    batch = random_batch(AGENT, LENGTH, BATCH)
    step_type = np.full((LENGTH + 1, BATCH), StepType.LAST, np.int32)
    step_type[0], step_type[1] = StepType.FIRST, StepType.MID  # two steps; the rest is padding
    version = np.zeros((LENGTH + 1, BATCH), np.int32)
    version[:2] = [[-5], [-3]]  # the learner has made no update yet
    batch = batch._replace(timestep=batch.timestep._replace(step_type=step_type), version=version)
    learner = Learner(AGENT, NoReplay(), seed=0)
    learner.update(Sample(batch, KEYS, BATCH))
    counts = LagCounts()
    counts.merge(learner.take_report()["policy_lags"])
    lags = counts.columns()
    assert (lags["policy_lag_mean"], lags["policy_lag_min"], lags["policy_lag_max"]) == (4, 3, 5)
    step_type[:] = StepType.LAST  # no step at all
    learner.update(Sample(batch, KEYS, 2 * BATCH))
    assert "policy_lags" not in learner.take_report()
