"""Settings that cannot work are refused; the arithmetic of limits."""

import math

import numpy as np
import pytest

from distrl.errors import ConfigError
from distrl.replay.buffer import ReplayConfig
from distrl.replay.columns import Columns
from distrl.replay.table.rate_limiter import RateLimiter
from distrl.replay.table.sum_tree import SumTree


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"table": "unifrom"}, "did you mean 'uniform'"),
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
        ({"table": "uniform", "error_buffer": 3.0}, "needs replay.samples_per_insert"),
        ({"period": 4}, "replay.period=4 is not for a queue.*each step once; leave it None"),
        ({"table": "uniform", "period": 0}, "replay.period .* from 1 to .*=20.*got 0"),
        ({"table": "uniform", "unroll_length": 8, "period": 9}, "from 1 to .*=8, .*got 9"),
        ({"table": "uniform", "period": 2.0}, "replay.period .* whole number .*got 2.0"),
        ({"priority_exponent": -0.1}, "replay.priority_exponent"),
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
    # Alignment of the columns is all that a block adds.
    assert Columns(streams.struct, 20).nbytes(100) <= config.nbytes(streams.struct) + 20 * 64


def test_limiter_counts_one_by_one():
    """Many inserts at once pass just as far as Reverb's rule lets them one after the other."""
    rng = np.random.default_rng(0)
    for _ in range(300):
        max_size = int(rng.integers(1, 9))
        config = ReplayConfig(
            "uniform",
            max_size=max_size,
            min_size_to_sample=int(rng.integers(1, max_size + 1)),
            samples_per_insert=float(rng.choice([0.25, 1.0, 3.0])),
        )
        limits = config.limits(batch_size=4)
        limiter = RateLimiter(limits)
        limiter.inserts = int(rng.integers(0, 30))
        limiter.deletes = max(0, limiter.inserts - max_size)
        limiter.samples = int(rng.integers(0, 60))
        expected, inserts, deletes = 0, limiter.inserts, limiter.deletes
        while expected < 10:
            free = inserts + 1 - deletes <= limits.min_size_to_sample
            error = (inserts + 1) * limits.samples_per_insert - limiter.samples
            if not free and not error <= limits.max_diff:
                break
            expected, inserts = expected + 1, inserts + 1
            deletes = max(0, inserts - max_size)
        assert limiter.can_insert(10, max_size) == expected


@pytest.mark.parametrize("capacity", [1, 2, 5, 64, 100])
def test_sum_tree(capacity):
    rng = np.random.default_rng(capacity)
    tree, weights = SumTree(capacity), np.zeros(capacity)
    for _ in range(20):
        slots = rng.integers(capacity, size=7)
        new = rng.random(7) * rng.integers(0, 2, 7)
        tree.set(slots, new)
        weights[slots] = new
        np.testing.assert_array_equal(tree.get(np.arange(capacity)), weights)
        np.testing.assert_allclose(tree.total, weights.sum(), rtol=1e-12)
    tree.set(np.array([0]), np.array([1.0]))
    weights[0] = 1.0
    ends = np.cumsum(weights)
    masses = rng.random(1000) * ends[-1]
    slots = tree.find(masses)
    np.testing.assert_array_equal(slots, np.searchsorted(ends, masses, side="right"))
    last = tree.find(np.array([tree.total]))  # rounding may give the total itself
    assert weights[last[0]] > 0


def test_a_step_of_all_streams_may_pass_the_start():
    """99 unrolls cannot be sampled, and 16 more must still fit below max_diff."""
    config = ReplayConfig(
        "uniform", max_size=1000, min_size_to_sample=100, samples_per_insert=8.0, error_buffer=119
    )
    with pytest.raises(ConfigError, match="must be at least 120"):
        config.check(8, 16)
    ReplayConfig(
        "uniform", max_size=1000, min_size_to_sample=100, samples_per_insert=8.0, error_buffer=120
    ).check(8, 16)
