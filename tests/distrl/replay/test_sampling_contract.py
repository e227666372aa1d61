"""The contract of every kind of replay for sampling: which unrolls, and at what rate."""

import threading
import time

import jax
import numpy as np
import pytest

from distrl.errors import DeadlineExceeded, SpecError, Stopped
from distrl.replay.buffer import ReplayConfig
from tests.support.waiting import in_thread

T = 4


def ids(*numbers):
    return np.array(numbers, np.int32)


def test_uniform_is_uniform_over_the_newest(make_replay, streams, take):
    replay = make_replay(ReplayConfig("uniform", T, max_size=10, min_size_to_sample=10), 50)
    actor, learner = replay.client(), replay.client()
    streams.add_to(actor, np.arange(5, dtype=np.int32), 3 * T + 1)  # 15 unrolls, 5 too many
    actor.flush()
    assert learner.info()[:4] == (streams.table, 10, 10, 15)
    counts: dict[tuple[int, int, int], int] = {}
    keys: dict[int, set] = {}
    for sample in take(learner, 40):
        np.testing.assert_allclose(sample.trajectory.probability, 0.1, rtol=1e-6)
        for unroll, key in zip(streams.check(sample.trajectory), sample.key.tolist(), strict=True):
            counts[unroll] = counts.get(unroll, 0) + 1
            keys.setdefault(key, set()).add(unroll)
    assert set(counts) == {(i, 0, k * T) for i in range(5) for k in (1, 2)}
    assert len(keys) == 10 and all(len(unrolls) == 1 for unrolls in keys.values())
    expected = 40 * 50 / 10
    chi_square = sum((n - expected) ** 2 / expected for n in counts.values())
    assert chi_square < 33.7  # 9 degrees of freedom: once in 10,000 runs


def test_prioritized_follows_priorities(make_replay, streams, take):
    exponent = 0.5
    config = ReplayConfig(
        "prioritized", T, max_size=6, min_size_to_sample=6, priority_exponent=exponent
    )
    replay = make_replay(config, 60)
    actor, learner = replay.client(), replay.client()
    streams.add_to(actor, np.arange(6, dtype=np.int32), T + 1)
    actor.flush()
    key_of = {}
    for sample in take(learner, 3):  # new ones have equal priorities
        np.testing.assert_allclose(sample.trajectory.probability, 1 / 6, rtol=1e-6)
        key_of.update(zip(sample.trajectory.stream_id.tolist(), sample.key, strict=True))
    assert len(key_of) == 6
    priorities = np.array([0.0, 1.0, 4.0, 9.0, 16.0, 0.25])
    update = [key_of[i] for i in range(6)]
    unknown = [2**63 + 5, 2**40]  # never inserted, or removed long ago: no error
    learner.update_priorities(
        np.array(update + unknown, np.uint64), np.append(priorities, [5.0, 5.0])
    )
    take(learner, 3)  # fetched before the update
    weights = np.where(priorities > 0, priorities**exponent, 0)
    expected = weights / weights.sum()
    counts = np.zeros(6)
    for sample in take(learner, 40):
        streams_sampled = sample.trajectory.stream_id
        np.testing.assert_allclose(
            sample.trajectory.probability, expected[streams_sampled], rtol=1e-5
        )
        counts += np.bincount(streams_sampled, minlength=6)
    assert counts[0] == 0
    total = counts.sum()
    chi_square = ((counts[1:] - total * expected[1:]) ** 2 / (total * expected[1:])).sum()
    assert chi_square < 23.5  # 4 degrees of freedom: once in 10,000 runs


def test_priorities_are_checked(make_replay):
    learner = make_replay(ReplayConfig("prioritized", T), 2).client()
    for keys, priorities in (([1, 2], [1.0]), ([1], [-1.0]), ([1], [np.nan]), ([1], [np.inf])):
        with pytest.raises(SpecError, match="update_priorities"):
            learner.update_priorities(np.array(keys, np.uint64), np.array(priorities))


@pytest.mark.parametrize("table", ["uniform", "prioritized"])
def test_what_is_packed_is_the_sample(make_replay, streams, take, table):
    replay = make_replay(ReplayConfig(table, T, max_size=8, min_size_to_sample=8), 5)
    actor, learner = replay.client(), replay.client()
    streams.add_to(actor, np.arange(4, dtype=np.int32), 2 * T + 1)
    actor.flush()
    for sample in take(learner, 3):
        if learner.packs is None:
            assert sample.packed is None
            continue
        trajectory, memory = sample.packed
        assert trajectory is sample.trajectory
        taken = learner.packs.from_words(memory.view(np.uint32), trajectory.probability)
        jax.tree.map(np.testing.assert_array_equal, taken, trajectory)


def test_min_size_to_sample(make_replay, streams):
    replay = make_replay(ReplayConfig("uniform", T, max_size=32, min_size_to_sample=8), 4)
    actor, learner = replay.client(), replay.client()
    streams.add_to(actor, np.arange(4, dtype=np.int32), T + 1)
    actor.flush()
    with pytest.raises(DeadlineExceeded):
        learner.sample(0.3)
    streams.add_to(actor, np.arange(4, dtype=np.int32), T)
    streams.check(learner.sample(10.0).trajectory)


def test_samples_per_insert_bounds_both_sides(make_replay, streams):
    config = ReplayConfig(
        "uniform", T, max_size=100, min_size_to_sample=4, samples_per_insert=2.0, error_buffer=8.0
    )
    stop = threading.Event()
    replay = make_replay(config, 4)
    actor, learner = replay.client(stop), replay.client(stop)
    four = np.arange(4, dtype=np.int32)
    thread, raised = in_thread(lambda: streams.add_to(actor, four, 40 * T))
    # error = 2 * inserts - samples; inserts block above 2 * 4 + 8 = 16: the 9th.
    deadline = time.monotonic() + 10
    while learner.info().inserts < 8:
        assert time.monotonic() < deadline
    time.sleep(0.2)
    info = learner.info()
    assert (info.inserts, info.samples) == (8, 0) and thread.is_alive()
    for _ in range(6):
        learner.sample(10.0)
        info = learner.info()
        assert 0 <= 2 * info.inserts - info.samples <= 16
    stop.set()
    thread.join(5.0)
    assert isinstance(raised[0], Stopped)
    # Samples block below 2 * 4 - 8 = 0. Batches fetched ahead count as sampled.
    last = replay.client()
    with pytest.raises(DeadlineExceeded):
        for _ in range(100):
            last.sample(0.3)
    info = last.info()
    assert 0 <= 2 * info.inserts - info.samples < 4


@pytest.mark.parametrize(
    ("config", "batches"),
    [
        (ReplayConfig("queue", T, max_size=32), 3),  # of 4 of the 14 unrolls
        # Of 14 * 2 samples that pay for themselves and the 20 - 8 that min_diff allows ahead.
        (ReplayConfig("uniform", T, 32, 4, samples_per_insert=2, error_buffer=20), 10),
        (ReplayConfig("uniform", T, 32, 4), 0),  # any number, so none that would be the last
    ],
    ids=["queue", "ratio", "no ratio"],
)
def test_when_there_is_no_more_without_inserts(make_replay, streams, take, config, batches):
    replay = make_replay(config, 4)
    actor, learner = replay.client(), replay.client()
    streams.add_to(actor, np.arange(14, dtype=np.int32), T + 1)
    actor.flush()
    for _ in range(batches):
        assert learner.has_more()
        take(learner, 1)
    assert not learner.has_more()
