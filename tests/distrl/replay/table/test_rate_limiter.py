"""The rate limiter: inserts one by one, and limits that change."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distrl.replay.buffer import ReplayConfig
from distrl.replay.table.rate_limiter import RateLimiter

T = 4


def test_limiter_counts_one_by_one():
    """Of many inserts at once, as many are admitted as by Reverb's rule one after the other."""
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


limits = st.builds(
    lambda *drawn: drawn,
    st.sampled_from([None, 0.1, 0.25, 1.0, 1.5, 7.0, 256.0]),
    st.integers(1, 12),
    st.one_of(st.floats(0, 50), st.just(math.inf)),
    st.booleans(),
)


@given(
    first=limits,
    changes=st.lists(limits, min_size=1, max_size=4),
    batch=st.integers(1, 6),
    counts=st.lists(st.integers(0, 20), min_size=5, max_size=5),
)
def test_changed_limits_continue_from_the_counts(first, changes, batch, counts):
    """After any change the error is within the bounds, and an insert or a sample is admitted."""
    max_size = 12

    def made(ratio, size, half, strict):
        if ratio is None:
            return ReplayConfig("uniform", T, max_size, size).limits(batch)
        least = max(1.0, ratio, (batch + ratio) / 2)
        config = ReplayConfig(
            "uniform", T, max_size, size, ratio, least + half, strict_ratio=strict
        )
        config.check(batch)
        return config.limits(batch)

    before = made(*first)
    limiter = RateLimiter(before)
    rng = np.random.default_rng(counts)

    def proceed(times):
        for _ in range(times):
            admitted = [limiter.can_insert(1, max_size), limiter.can_sample(batch)]
            assert any(admitted), limiter.limits
            if admitted[0] and (not admitted[1] or rng.random() < 0.5):
                limiter.inserts += 1
                limiter.deletes = max(0, limiter.inserts - max_size)
            else:
                limiter.samples += batch

    proceed(counts[0])
    for change, times in zip(changes, counts[1:], strict=False):
        new = made(*change)
        old = limiter.limits
        limiter.limits = limiter.rebased(new, before)
        before = new
        low, high = limiter.limits[2:]
        assert limiter.limits[:2] == new[:2]
        assert high - low == pytest.approx(new.max_diff - new.min_diff)
        if limiter.size >= new.min_size_to_sample and limiter.limits != old:
            assert low - 1e-6 <= limiter.error <= high + 1e-6
        if limiter.inserts == limiter.samples == 0:
            assert limiter.limits == pytest.approx(new)
        proceed(times)


def changed_batches(before, after, batch=32):
    """Returns the batches that a change admits at once, where all had been sampled before it."""
    limiter = RateLimiter(before)
    limiter.inserts = 10_000
    while limiter.can_sample(batch):
        limiter.samples += batch
    limiter.limits = limiter.rebased(after, before)
    count = 0
    while limiter.can_sample(batch):
        limiter.samples += batch
        count += 1
    for inserts in range(1, 10 * batch):
        limiter.inserts += 1
        if limiter.can_sample(batch):
            return count, inserts
    return count, math.inf


@pytest.mark.parametrize("error", [64.0, 1000.0, math.inf])
@pytest.mark.parametrize("other", [{"samples_per_insert": 1.0}, {"min_size_to_sample": 5000}])
def test_a_change_of_a_strict_ratio_makes_up_for_nothing(error, other):
    """No batch comes before its inserts, and none waits for those of the past."""
    config = ReplayConfig("uniform", T, 20_000, 1000, 8.0, error, strict_ratio=True)
    changed = dataclasses.replace(config, **other)
    count, inserts = changed_batches(config.limits(32), changed.limits(32))
    assert count == 0
    assert inserts <= 32 / changed.samples_per_insert


@pytest.mark.parametrize("error", [100.0, 1000.0, math.inf])
def test_a_buffer_of_a_strict_ratio_admits_no_batch(error):
    config = ReplayConfig("uniform", T, 20_000, 1000, 1.0, 200.0, strict_ratio=True)
    changed = dataclasses.replace(config, error_buffer=error)
    assert changed_batches(config.limits(32), changed.limits(32))[0] == 0


def test_a_strict_ratio_that_begins_admits_one_batch():
    """As in a new table."""
    strict = ReplayConfig("uniform", T, 20_000, 1000, 1.0, 1000.0, strict_ratio=True).limits(32)
    limiter = RateLimiter(ReplayConfig("uniform", T, 20_000, 1000).limits(32))
    limiter.inserts, limiter.samples = 5000, 64_000
    limiter.limits = limiter.rebased(strict, limiter.limits)
    assert limiter.can_sample(32)
    limiter.samples += 32
    assert not limiter.can_sample(32)
