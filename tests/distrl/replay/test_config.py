"""Settings that cannot work are refused; the arithmetic of limits and shards."""

import dataclasses
import math

import pytest

from distrl import presets
from distrl.config import LearnerConfig
from distrl.envs import PythonEnvironment
from distrl.errors import ConfigError
from distrl.experiment import Experiment
from distrl.replay.buffer import ReplayConfig
from distrl.replay.columns import Columns
from distrl.testing import CheckingConfig, CountingEnvironment


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"table": "unifrom"}, "got 'unifrom'; did you mean uniform"),
        ({"unroll_length": 0}, "replay.unroll_length .* got 0"),
        ({"max_size": 2.5}, "replay.max_size .* got 2.5"),
        ({"table": "uniform", "max_size": 4, "min_size_to_sample": 5}, "never be sampled"),
        ({"min_size_to_sample": 5}, "not for a queue"),
        ({"samples_per_insert": 1.0}, "not for a queue"),
        ({"table": "uniform", "samples_per_insert": -1.0}, "must be positive"),
        (
            {"table": "uniform", "samples_per_insert": 4.0, "error_buffer": 3.0},
            r"at least max\(1, samples_per_insert\) = 4",
        ),
        (
            {"table": "uniform", "error_buffer": 3.0},
            "needs replay.samples_per_insert; set that, or replay.error_buffer=None",
        ),
        (
            {"table": "uniform", "strict_ratio": True},
            "strict_ratio=True needs replay.samples_per_insert; set that, or .*ratio=False, too",
        ),
        ({"strict_ratio": True}, "strict_ratio=True is not for a queue.*leave it False, or use"),
        ({"period": 4}, "replay.period=4 is not for a queue.*each step once; leave it None"),
        ({"table": "uniform", "period": 0}, "replay.period .* from 1 to .*=20.*got 0"),
        ({"table": "uniform", "unroll_length": 8, "period": 9}, "from 1 to .*=8, .*got 9"),
        ({"table": "uniform", "period": 2.0}, "replay.period .* whole number .*got 2.0"),
        ({"priority_exponent": -0.1}, "replay.priority_exponent"),
        ({"priority_exponent": 4.1}, "replay.priority_exponent must be from 0 to 4; got 4.1"),
        ({"priority_exponent": math.nan}, "replay.priority_exponent must be from 0 to 4; got nan"),
        ({"initial_priority": 1e39}, r"must be from 0 to 3.4e\+38; got 1e\+39"),
        (
            {"priority_exponent": 0.9},
            "priority_exponent=0.9 is not for a queue.*leave it 0.6",
        ),
        ({"initial_priority": 2.0}, "replay.initial_priority=2.0 is not for a queue"),
        ({"initial_priority": math.nan}, "replay.initial_priority"),
    ],
)
def test_refused_by_itself(settings, message):
    with pytest.raises(ConfigError, match=message):
        ReplayConfig(**settings)


def test_refused_with_a_batch_size():
    with pytest.raises(ConfigError, match="max_size=16 unrolls can never hold a batch of 32"):
        ReplayConfig(max_size=16).check(32)
    ReplayConfig(max_size=95).check(32, streams=64)
    with pytest.raises(ConfigError, match=r"31 unrolls.*are 95"):
        ReplayConfig(max_size=94).check(32, streams=64)
    ratio = ReplayConfig("uniform", samples_per_insert=1.0, error_buffer=10.0)
    ratio.check(19)
    with pytest.raises(ConfigError, match=r"error_buffer=10 would stall.*at least 10\.5"):
        ratio.check(20)
    ReplayConfig("uniform", samples_per_insert=0.25).check(32, streams=32)


def test_memory(streams):
    config = ReplayConfig(unroll_length=20, max_size=100)
    per_step = 1 + 4 + 4 + 4 + 8 + 4 + 4 + 4 + 12 + 4
    once = 8 + 4 + 4 + 4 + 4
    assert config.nbytes(streams.struct) == 100 * (21 * per_step + once)
    # A block adds only the alignment of its columns.
    assert Columns(streams.struct, 20).nbytes(100) <= config.nbytes(streams.struct) + 20 * 64


def test_a_step_of_all_streams_may_pass_the_start():
    """99 unrolls cannot be sampled, and 16 more must fit below max_diff."""
    config = ReplayConfig(
        "uniform", max_size=1000, min_size_to_sample=100, samples_per_insert=8.0, error_buffer=119
    )
    with pytest.raises(ConfigError, match="must be at least 120"):
        config.check(8, 16)
    ReplayConfig(
        "uniform", max_size=1000, min_size_to_sample=100, samples_per_insert=8.0, error_buffer=120
    ).check(8, 16)


T = 4


def test_sizes_of_a_shard():
    config = ReplayConfig(
        "uniform", T, 90, min_size_to_sample=10, samples_per_insert=4.0, error_buffer=60.0,
        num_shards=3, backend="reverb",
    )  # fmt: skip
    shard = config.of_shard()
    assert (shard.max_size, shard.min_size_to_sample, shard.num_shards) == (30, 4, 1)
    assert (shard.samples_per_insert, shard.error_buffer) == (4.0, 20.0)
    config.check(32)
    plain = ReplayConfig()
    assert plain.of_shard() is plain


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_size": 100, "num_shards": 3}, r"it is 3 \* 33 \+ 1; use 99 or 102$"),
        ({"max_size": 2, "num_shards": 3}, r"it is 3 \* 0 \+ 2; use 3$"),
        ({"num_shards": 0}, "replay.num_shards must be a whole number, 1 or more; got 0"),
        ({"num_shards": 2, "backend": "auto"}, "which replay.backend=auto does not have; use"),
        (
            {"table": "uniform", "samples_per_insert": 8.0, "error_buffer": 12.0, "num_shards": 2},
            r"^replay.num_shards=2: in each shard: replay.error_buffer=6.0 must be at least",
        ),
        (
            {"table": "uniform", "samples_per_insert": 2.0, "error_buffer": 5.0, "num_shards": 2},
            r"^replay.num_shards=2: in each shard: replay.error_buffer=2.5 would stall",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_split(settings, message):
    with pytest.raises(ConfigError, match=message):
        ReplayConfig(**{"backend": "reverb", **settings}).check(8)


@pytest.mark.parametrize("table", ["uniform", "prioritized"])
def test_a_batch_larger_than_the_table_can_hold(table):
    def experiment(batch_size):
        return Experiment(
            PythonEnvironment(CountingEnvironment),
            CheckingConfig(),
            ReplayConfig(table, 4, max_size=64),
            learner=LearnerConfig(batch_size=batch_size),
        )

    with pytest.raises(ConfigError, match=r"=1000000000 is more than replay\.max_size=64 unrolls"):
        experiment(10**9)
    experiment(64)


def test_more_shards_than_actors():
    made = presets.experiment("CartPole-v1", "impala")
    replay = dataclasses.replace(made.replay, num_shards=4, backend="reverb")
    actors = dataclasses.replace(made.actors, num_actors=3)
    with pytest.raises(ConfigError, match=r"num_shards=4 is more than actors.num_actors=3"):
        dataclasses.replace(made, replay=replay, actors=actors)
