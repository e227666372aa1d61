"""Chi-square tests: sampling follows the priorities, also while they change."""

import threading
import time

import numpy as np
import pytest

from distrl.replay.buffer import ReplayConfig
from distrl.replay.shared.buffer import SharedReplayBuffer
from distrl.replay.table.rate_limiter import RateLimiter
from distrl.replay.table.ring import Ring

T = 2
SIZE = 12
BATCH = 100
SAMPLES = 1000
CONFIG = ReplayConfig("prioritized", T, SIZE, SIZE, priority_exponent=0.7)
KEYS = np.arange(SIZE, dtype=np.uint64)
LIMIT = 49.0  # of 11 degrees of freedom: once in 10^6 runs


class Tally:
    """Counts draws, and the counts expected at the time of each draw.

    Each draw has its own probabilities, so counts are compared with their sum, normalized by the
    sum of the draws' covariances: a chi-square with `SIZE - 1` degrees of freedom for any
    probabilities.
    """

    def __init__(self):
        self.counts = np.zeros(SIZE)
        self.expected = np.zeros(SIZE)
        self.covariance = np.zeros((SIZE, SIZE))
        self.chances: set[bytes] = set()

    def add(self, drawn, priorities, exponent):
        """Args: drawn: indices. priorities: `[SIZE]` at that moment."""
        weights = np.where(priorities > 0, priorities**exponent, 0.0)
        chances = weights / weights.sum()
        self.counts += np.bincount(drawn, minlength=SIZE)
        self.expected += len(drawn) * chances
        self.covariance += len(drawn) * (np.diag(chances) - np.outer(chances, chances))
        self.chances.add(chances.tobytes())

    def chi_square(self):
        error = self.counts - self.expected
        return error @ np.linalg.pinv(self.covariance) @ error


def changes(client, stop):
    """Sets priorities of some keys, and of unknown ones, and exponents, until `stop()`."""
    rng = np.random.default_rng(7)
    while not stop():
        for _ in range(50):
            keys = np.append(rng.choice(KEYS, 4, replace=False), [999]).astype(np.uint64)
            # Never 0 for all, which would mean uniform sampling.
            priorities = (keys + 1.0) * rng.exponential(size=5) * (rng.random(5) < 0.8)
            client.update_priorities(keys, np.where(keys == 3, 0.5, priorities))
        client.reconfigure(priority_exponent=float(rng.choice([0.0, 0.4, 0.7, 1.3])))


def change_for_ever(name, struct):
    changes(SharedReplayBuffer(name, struct, CONFIG, BATCH), lambda: False)


@pytest.mark.parametrize("make_replay", ["local", "shared"], indirect=True)
def test_sampled_as_weighted_while_weights_change(make_replay, streams, elsewhere):
    """10^5 samples; another thread (for a shared table: process) changes priorities."""
    replay = make_replay(CONFIG, BATCH)
    client = replay.client()
    streams.add_to(client, np.arange(SIZE, dtype=np.int32), T + 1)
    tally, wrong = Tally(), Tally()
    local = replay.kind == "local"
    ring = replay._table._store._ring if local else client._handle._table.store.ring
    chosen = []
    choose = ring.choose

    def watched(count, sampler=None, read=None):  # with the table's lock held
        priorities, exponent = ring.priorities().copy(), ring._exponent
        draw = choose(count, sampler)
        tally.add(draw.indices, priorities, exponent)
        chosen.append(draw.indices)
        wrong.add(draw.indices, priorities, exponent + 0.1)
        weights = np.where(priorities > 0, priorities**exponent, 0.0)
        chances = (weights / weights.sum())[draw.indices]
        np.testing.assert_allclose(draw.probability, chances, rtol=1e-5)
        return draw

    ring.choose = watched
    done = threading.Event()
    if local:
        thread = threading.Thread(target=changes, args=(replay.client(), done.is_set), daemon=True)
        thread.start()
    else:
        before, deadline = ring.priorities().copy(), time.monotonic() + 60.0
        child = elsewhere(change_for_ever, streams.table, streams.struct)
        while np.array_equal(ring.priorities(), before):  # until the other process has started
            assert child.poll() is None and time.monotonic() < deadline
            time.sleep(0.01)
    samples, deadline = 0, time.monotonic() + 60.0
    try:
        while samples < SAMPLES or len(tally.chances) <= 20:  # where the other one gets little time
            assert time.monotonic() < deadline
            sampled = client.sample(10.0).trajectory.stream_id
            np.testing.assert_array_equal(sampled, chosen[-1])
            samples += 1
    finally:
        done.set()
        if local:
            thread.join(10.0)
        else:
            assert child.poll() is None  # it ran to the end
    assert tally.counts.sum() == samples * BATCH
    assert tally.chi_square() < LIMIT
    assert wrong.chi_square() > LIMIT  # the test is sensitive to an error of 0.1 in the exponent


@pytest.mark.slow
@pytest.mark.parametrize("make_replay", ["reverb"], indirect=True)
def test_reverb_samples_as_weighted_while_weights_are_set(make_replay, streams):
    """10^5 samples. Setting the same weights repeatedly keeps them known at every moment."""
    replay = make_replay(CONFIG, BATCH)
    client, other = replay.client(), replay.client()
    streams.add_to(client, np.arange(SIZE, dtype=np.int32), T + 1)
    client.flush()
    key_of = {}
    while len(key_of) < SIZE:
        sample = client.sample(10.0)
        key_of.update(zip(sample.trajectory.stream_id.tolist(), sample.key.tolist(), strict=True))
    keys = np.array([key_of[i] for i in range(SIZE)], np.uint64)
    priorities = np.linspace(0.1, 5.0, SIZE)
    client.update_priorities(keys, priorities)
    for _ in range(3):  # what was fetched before
        client.sample(10.0)
    done = threading.Event()

    def again():
        while not done.is_set():
            other.update_priorities(np.append(keys, [999]).astype(np.uint64), [*priorities, 7.0])

    thread = threading.Thread(target=again, daemon=True)
    thread.start()
    tally = Tally()
    for _ in range(SAMPLES):
        tally.add(client.sample(20.0).trajectory.stream_id, priorities, CONFIG.priority_exponent)
    done.set()
    thread.join(20.0)
    assert tally.counts.sum() == SAMPLES * BATCH
    assert tally.chi_square() < LIMIT


@pytest.mark.parametrize("unit", [float(np.finfo(np.float32).max) / 2, 1e-44])
def test_the_largest_exponent_suits_every_float32(unit):
    config = ReplayConfig("prioritized", T, 4, priority_exponent=4.0)
    ring = Ring(config, RateLimiter(config.limits(1)), np.random.default_rng(0))
    ring.prepare(4, unit * np.array([0.0, 1.0, 2.0, 1.0]))
    ring.insert(4)
    drawn = ring.choose(1000)
    chances = np.array([0, 1, 16, 1]) / 18
    np.testing.assert_allclose(drawn.probability, chances[drawn.indices], rtol=1e-6)
    assert set(drawn.indices.tolist()) == {1, 2, 3}
