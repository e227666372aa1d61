"""The contract of every kind of replay."""

import threading
import time

import numpy as np
import pytest

from distrl.errors import DeadlineExceeded, SpecError, Stopped
from distrl.replay.buffer import ReplayConfig
from tests.support.waiting import in_thread

T = 4


def ids(*numbers):
    return np.array(numbers, np.int32)


@pytest.mark.parametrize(
    "num_streams, batch_size, per_item", [(4, 4, 4), (8, 4, 4), (4, 8, 4), (6, 4, 2), (3, 4, 1)]
)
def test_queue_gives_each_unroll_once_in_order(
    make_replay, streams, num_streams, batch_size, per_item
):
    replay = make_replay(ReplayConfig("queue", T, max_size=8 * batch_size), batch_size, per_item)
    actor, learner = replay.client(), replay.client()
    windows = 4
    streams.add_to(actor, np.arange(num_streams, dtype=np.int32), windows * T + 1)
    actor.flush()
    seen = []
    for _ in range(num_streams * windows // batch_size):
        sample = learner.sample(10.0)
        assert sample.trajectory.timestep.reward.shape == (T + 1, batch_size)
        np.testing.assert_array_equal(sample.trajectory.probability, np.ones(batch_size))
        assert sample.key.dtype == np.uint64 and sample.key.shape == (batch_size,)
        seen += streams.check(sample.trajectory)
    assert seen == [(i, 0, k * T) for k in range(windows) for i in range(num_streams)]


def test_queue_in_asynchronous_order_and_two_lives(make_replay, streams):
    replay = make_replay(ReplayConfig("queue", T, max_size=400), 5, 5)
    actor, learner = replay.client(), replay.client()
    rng = np.random.default_rng(0)
    counts: dict[tuple[int, int], int] = {}
    everyone = ids(3, 1000, -7, 12, 5, 99, 8)
    for call in range(300):
        chosen = rng.choice(everyone, rng.integers(1, 6), replace=False)
        life = int(call >= 150)
        streams.add_to(actor, chosen, life=life)
        for i in chosen.tolist():
            counts[i, life] = counts.get((i, life), 0) + 1
    expected = {(i, life, k * T) for (i, life), n in counts.items() for k in range((n - 1) // T)}
    actor.flush()
    seen = []
    for _ in range(len(expected) // 5):
        seen += streams.check(learner.sample(10.0).trajectory)
    assert len(set(seen)) == len(seen)
    assert set(seen) <= expected and len(expected) - len(seen) < 5
    for i in everyone.tolist():
        windows = [(life, start) for stream, life, start in seen if stream == i]
        assert windows == sorted(windows)


def test_two_actors(make_replay, streams):
    replay = make_replay(ReplayConfig("queue", T, max_size=64), 4, 2)
    for first in (0, 10):
        actor = replay.client()
        streams.add_to(actor, ids(first, first + 1), 4 * T + 1)
        actor.flush()
    learner = replay.client()
    seen = []
    for _ in range(4):
        seen += streams.check(learner.sample(10.0).trajectory)
    assert sorted(seen) == [(i, 0, k * T) for i in (0, 1, 10, 11) for k in range(4)]


def test_a_full_queue_blocks_inserts(make_replay, streams):
    stop = threading.Event()
    replay = make_replay(ReplayConfig("queue", T, max_size=8), 4, 4)
    actor, learner = replay.client(stop), replay.client(stop)
    thread, raised = in_thread(lambda: streams.add_to(actor, np.arange(4, dtype=np.int32), 20 * T))
    deadline = time.monotonic() + 10
    while learner.info().size < 8:
        assert time.monotonic() < deadline
    time.sleep(0.3)  # for inserts that may still come
    assert thread.is_alive()
    assert learner.info().size == 8 and learner.info().inserts <= 8 + 4
    stop.set()
    thread.join(30.0)
    assert not thread.is_alive()
    assert isinstance(raised[0], Stopped)


def test_an_insert_has_a_deadline(make_replay, streams):
    replay = make_replay(ReplayConfig("queue", T, max_size=4), 4, 4)
    actor = replay.client(insert_timeout=0.5)
    with pytest.raises(DeadlineExceeded, match=rf"room.*'{streams.table}'.*size 4 of 4"):
        streams.add_to(actor, np.arange(4, dtype=np.int32), 20 * T)


def test_a_sample_has_a_deadline(make_replay, streams):
    replay = make_replay(ReplayConfig("queue", T, max_size=8), 4, 2)
    actor, learner = replay.client(), replay.client()
    assert not learner.can_sample()
    with pytest.raises(
        DeadlineExceeded, match=rf"batch.*'{streams.table}'.*size 0 of 8, 0 inserts"
    ):
        learner.sample(0.3)
    # Nothing was lost by the timeout.
    streams.add_to(actor, ids(0, 1), 2 * T + 1)
    seen = streams.check(learner.sample(10.0).trajectory)
    assert seen == [(0, 0, 0), (1, 0, 0), (0, 0, T), (1, 0, T)]


def test_a_waiting_sample_stops(make_replay):
    stop = threading.Event()
    learner = make_replay(ReplayConfig("queue", T, max_size=8), 4, 2).client(stop)
    thread, raised = in_thread(lambda: learner.sample(None))
    time.sleep(0.2)
    assert thread.is_alive()
    stop.set()
    thread.join(30.0)
    assert not thread.is_alive()
    assert isinstance(raised[0], Stopped)


def test_a_waiting_sample_wakes_for_an_insert(make_replay, streams):
    replay = make_replay(ReplayConfig("queue", T, max_size=8), 2, 2)
    actor, learner = replay.client(), replay.client()
    thread, raised = in_thread(lambda: streams.check(learner.sample(10.0).trajectory))
    streams.add_to(actor, ids(0, 1), T + 1)
    thread.join(10.0)
    assert not thread.is_alive() and not raised


def test_can_sample_and_counts(make_replay, streams):
    replay = make_replay(ReplayConfig("queue", T, max_size=16), 4, 4)
    actor, learner = replay.client(), replay.client()
    streams.add_to(actor, np.arange(4, dtype=np.int32), T)
    assert not learner.can_sample()
    streams.add_to(actor, np.arange(4, dtype=np.int32), 1)
    actor.flush()
    deadline = time.monotonic() + 10
    while not learner.can_sample():
        assert time.monotonic() < deadline
    learner.sample(1.0)
    info = learner.info()
    assert info[:5] == (streams.table, 0, 16, 4, 4)


@pytest.mark.parametrize("make_replay", ["local", "shared"], indirect=True)
@pytest.mark.parametrize("kind", ["queue", "uniform", "prioritized"])
def test_ages(make_replay, streams, kind):
    replay = make_replay(ReplayConfig(kind, T, max_size=8), 2)
    client = replay.client()
    table = replay._table or replay._shared
    assert table.contents().ages is None and "ages" not in str(table.contents())
    streams.add_to(client, np.arange(4, dtype=np.int32), T + 1)
    streams.add_to(client, np.arange(4, dtype=np.int32), T - 1)
    time.sleep(0.05)
    streams.add_to(client, ids(0, 1), 1)
    oldest, median, oldest_seconds, median_seconds = table.contents().ages
    assert (oldest, median) == (5, 2)
    assert oldest_seconds >= median_seconds >= 0.0 and oldest_seconds >= 0.05
    client.sample(1.0)
    _, _, oldest_seconds, median_seconds = table.contents().ages
    if kind == "queue":  # 2 of the first 4 are gone: the median is of the second insert
        assert table.contents().ages[:2] == (3, 1)
        assert median_seconds < oldest_seconds
    assert "ages: median " in str(table.contents())


def test_make_dataset(make_replay, streams):
    replay = make_replay(ReplayConfig("queue", T, max_size=16), 4, 4)
    actor, learner = replay.client(), replay.client()
    streams.add_to(actor, np.arange(4, dtype=np.int32), 2 * T + 1)
    dataset = learner.make_dataset(10.0)
    starts = [streams.check(next(dataset).trajectory)[0][2] for _ in range(2)]
    assert starts == [0, T]
    soon = learner.make_dataset(0.2)
    for _ in range(2):  # each batch has the deadline, and an error does not end the iterator
        with pytest.raises(DeadlineExceeded, match=r"batch.*size 0 of 16"):
            next(soon)
    streams.add_to(actor, np.arange(4, dtype=np.int32), T)
    assert streams.check(next(dataset).trajectory)[0][2] == 2 * T


@pytest.mark.parametrize("period", [1, 3])
@pytest.mark.parametrize("lockstep", [True, False])
def test_unrolls_overlap(make_replay, streams, period, lockstep):
    """Each value and stored state is right, and every finished unroll is in the table."""
    config = ReplayConfig("uniform", T, max_size=400, period=period)
    replay = make_replay(config, 100)
    actor, learner = replay.client(), replay.client()
    rng = np.random.default_rng(0)
    steps: dict[tuple[int, int], int] = {}
    for call in range(40):
        chosen = ids(3, 1000, -7) if lockstep else rng.permutation(ids(3, 1000, -7))[: 1 + call % 3]
        life = int(call >= 25)
        streams.add_to(actor, chosen, life=life)
        for i in chosen.tolist():
            steps[i, life] = steps.get((i, life), 0) + 1
    actor.flush()
    expected = {(*key, start) for key, n in steps.items() for start in range(0, n - T, period)}
    assert learner.info().inserts == len(expected)
    seen = set()
    for _ in range(40):  # each is missed once in 10^10 runs
        seen.update(streams.check(learner.sample(10.0).trajectory, period))
    assert seen == expected


def test_a_value_that_breaks_its_spec_is_named(make_replay, streams):
    actor = make_replay(ReplayConfig("queue", T), 2, 2).client()
    two = ids(0, 1)
    timestep, inference = streams.step(two)
    wrong = timestep._replace(
        observation={**timestep.observation, "step": timestep.observation["step"].astype(float)}
    )
    message = r"timestep\.observation\['step'\]: expected float32\[2, 2\], got float64\[2, 2\]"
    with pytest.raises(SpecError, match=message):
        actor.add(two, wrong, inference)


def test_a_closed_client(make_replay, streams):
    replay = make_replay(ReplayConfig("queue", T), 2, 2)
    client = replay.client()
    streams.add_to(client, ids(0, 1), T + 1)
    client.flush()
    assert client.sample(10.0).key.shape == (2,)
    client.close()
    with pytest.raises(Stopped):
        client.sample(1.0)
