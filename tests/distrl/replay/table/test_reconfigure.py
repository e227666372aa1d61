"""Settings that change while a table is in use: refused, or in force at once for all."""

import contextlib
import dataclasses
import math
import os
import threading
import uuid

import numpy as np
import pytest
from dm_env import specs as dm_specs

from distrl import specs
from distrl.errors import ConfigError, DeadlineExceeded, Stopped
from distrl.replay.buffer import ReplayConfig
from distrl.replay.shared.buffer import SharedReplayBuffer
from distrl.replay.shared.table import SharedTable
from distrl.replay.table import reconfigure
from tests.support.selection import full
from tests.support.waiting import in_thread, until

T = 4
BATCH = 4
WAIT_S = 20.0
SPEC = specs.EnvironmentSpec(dm_specs.Array((1,), np.float32), dm_specs.DiscreteArray(2))
RATIO = ReplayConfig(
    "uniform", T, max_size=40, min_size_to_sample=4, samples_per_insert=2.0, error_buffer=8.0
)
both = pytest.mark.parametrize("make_replay", ["local", "shared"], indirect=True)


def ids(count, first=0):
    return np.arange(first, first + count, dtype=np.int32)


@both
@pytest.mark.parametrize(
    "changes, message",
    [
        ({}, "nothing to change: give one of table, samples_per_insert"),
        ({"samples_per_insret": 1.0}, "no setting 'samples_per_insret'; did you mean samples_per"),
        ({"max_size": 80}, "replay.max_size of a live table is fixed; these can be changed: table"),
        ({"table": "queue"}, "between uniform and prioritized only"),
        ({"table": "unifrom"}, "got 'unifrom'; did you mean uniform"),
        ({"min_size_to_sample": 41}, "more than replay.max_size=40"),
        ({"samples_per_insert": 16.0}, r"at least max\(1, samples_per_insert\) = 16"),
        ({"samples_per_insert": 0.25, "error_buffer": 2.0}, r"error_buffer=2 would stall"),
        ({"samples_per_insert": None, "error_buffer": 9.0}, "needs replay.samples_per_insert"),
    ],
)
def test_what_could_stall_is_refused_and_changes_nothing(make_replay, changes, message):
    client = make_replay(RATIO, BATCH).client()
    before = client.info()
    with pytest.raises(ConfigError, match=message):
        client.reconfigure(**changes)
    assert client.info() == before


@both
def test_a_queue_is_refused(make_replay):
    client = make_replay(ReplayConfig("queue", T), BATCH, 4).client()
    with pytest.raises(ConfigError, match=r"replay\.table cannot be .* a queue hands out each"):
        client.reconfigure(table="uniform")


def test_reverb_is_refused():
    error = reconfigure.refused_by_reverb({"table": "uniform"}, "table 'task-1' at h1:80")
    message = r"^replay\.table of table 'task-1' at h1:80 .* replay.backend=shared_memory they can"
    with pytest.raises(ConfigError, match=message):
        raise error


@both
def test_blocked_calls_recheck_the_new_limits(make_replay, streams):
    replay = make_replay(RATIO, BATCH)
    writer, reader = replay.client(), replay.client()
    thread, raised = in_thread(lambda: streams.add_to(writer, ids(4), 10 * T + 1))
    until(lambda: reader.info().waits, "the insert to wait", WAIT_S)
    assert reader.info().inserts == 8
    reader.reconfigure(samples_per_insert=None)  # disables the limiter
    thread.join(10.0)
    assert not thread.is_alive() and not raised
    info = reader.info()
    assert info.inserts == 40 and info.limits[2:] == (-math.inf, math.inf)

    writer.reconfigure(min_size_to_sample=40, samples_per_insert=1.0)
    reader.sample(5.0)  # the bounds moved: 4 either way, not 40 inserts ahead
    with pytest.raises(DeadlineExceeded, match=r"36 <= inserts \* 1 - samples.*it is 36"):
        reader.sample(0.1)
    thread, raised = in_thread(lambda: reader.sample(20.0))
    until(lambda: writer.info().waits, "the sample to wait", WAIT_S)
    writer.reconfigure(error_buffer=12.0)
    thread.join(10.0)
    assert not thread.is_alive() and not raised
    # Clients with the initial settings can still join.
    late = replay.client()
    assert late.info().limits == writer.info().limits
    late.sample(5.0)


@both
def test_a_strict_ratio_ends_with_its_ratio(make_replay, streams):
    client = make_replay(dataclasses.replace(RATIO, strict_ratio=True), BATCH).client()
    info = client.reconfigure(samples_per_insert=None)
    assert info.limits[2:] == (-math.inf, math.inf)
    with pytest.raises(ConfigError, match=r"replay\.strict_ratio of a live table is fixed"):
        client.reconfigure(strict_ratio=True)
    info = client.reconfigure(samples_per_insert=2.0)
    assert info.limits == dataclasses.replace(RATIO, error_buffer=None).limits(BATCH)


@both
def test_samplers_change(make_replay, streams):
    replay = make_replay(
        dataclasses.replace(RATIO, samples_per_insert=None, error_buffer=None), 100
    )
    writer, reader = replay.client(), replay.client()
    streams.add_to(writer, ids(4), T + 1)
    keys, priorities = ids(4).astype(np.uint64), np.array([1.0, 2.0, 3.0, 0.0])

    def probability():
        """Returns each key's probability as reported by a hundred samples; 0 if not sampled."""
        sample = reader.sample(5.0)
        seen = np.zeros(4)
        seen[sample.key.astype(int)] = sample.trajectory.probability
        return seen

    reader.update_priorities(keys, priorities)  # a uniform table has none
    np.testing.assert_allclose(probability(), 1 / 4)
    assert not reader.is_prioritized
    writer.reconfigure(table="prioritized", priority_exponent=1.0, initial_priority=2.0)
    np.testing.assert_allclose(probability(), 1 / 4)
    assert reader.is_prioritized
    reader.update_priorities(keys, priorities)
    np.testing.assert_allclose(probability(), priorities / 6, rtol=1e-6)
    for exponent in (2.0, 0.0, 0.5):
        writer.reconfigure(priority_exponent=exponent)
        weights = np.where(priorities > 0, priorities**exponent, 0)
        np.testing.assert_allclose(probability(), weights / weights.sum(), rtol=1e-6)
    writer.reconfigure(table="uniform")
    np.testing.assert_allclose(probability(), 1 / 4)
    streams.add_to(writer, ids(4), T)
    writer.reconfigure(table="prioritized")  # all unrolls get one priority again
    sample = reader.sample(5.0)
    np.testing.assert_allclose(sample.trajectory.probability, 1 / 8)


SOME = (
    {"samples_per_insert": 8.0, "error_buffer": 10.0},
    {"min_size_to_sample": 20, "error_buffer": 40.0},
    {"samples_per_insert": None},
    {"samples_per_insert": 0.5, "error_buffer": None, "table": "prioritized"},
    {"min_size_to_sample": 40},
    {"error_buffer": 3.0, "min_size_to_sample": 1, "table": "uniform"},
)  # fmt: skip


class Watch:
    """Checks each insert and sample of a local table against the limits in force."""

    def __init__(self, table):
        self.worst = math.inf
        self._store = store = table._store
        self._insert, self._sample = store.insert, store.sample
        store.insert, store.sample = self.insert, self.sample

    def insert(self, block):
        counts = self._store.counts
        limits = counts.limits
        error = (counts.inserts + block.size) * limits.samples_per_insert - counts.samples
        if counts.size + block.size > limits.min_size_to_sample:
            self.worst = min(self.worst, limits.max_diff - error)
        self._insert(block)

    def sample(self, count):
        sample = self._sample(count)
        self.worst = min(self.worst, self._store.counts.error - self._store.counts.limits.min_diff)
        return sample


@pytest.mark.parametrize("make_replay", ["local", full("shared")], indirect=True)
def test_limits_change_under_threads(make_replay, make_streams):
    """A writer and a reader never stall, and always obey the limits in force."""
    replay = make_replay(RATIO, BATCH)
    watch = Watch(replay._table) if replay.kind == "local" else None
    writer, reader, other = replay.client(), replay.client(), replay.client()
    done = threading.Event()
    streams, checker = make_streams(), make_streams()

    def write():
        while not done.is_set():
            streams.add_to(writer, ids(3))

    def read():
        while not done.is_set():
            checker.check(reader.sample(20.0).trajectory)

    threads = [in_thread(write), in_thread(read)]
    try:
        for round_ in range(24):
            change = SOME[round_ % len(SOME)]
            info = other.reconfigure(**change)
            # Both sides proceed under the new limits: so many inserts need samples.
            target = info.inserts + 60
            until(lambda target=target: other.info().inserts >= target, "60 inserts", WAIT_S)
    finally:
        done.set()
        other.reconfigure(samples_per_insert=None, min_size_to_sample=1)
        for thread, _ in threads:
            thread.join(20.0)
    assert not any(thread.is_alive() or raised for thread, raised in threads)
    worst = watch.worst if watch is not None else min(replay._shared.observed_margins())
    assert worst >= -1e-6


def until_closed(name, streams, step):
    """Calls `step` with a client with the initial settings until the owner closes the table."""
    client = SharedReplayBuffer(name, streams.struct, RATIO, BATCH, insert_timeout=5.0)
    with contextlib.suppress(Stopped):
        while True:
            step(client)


@pytest.mark.full
def test_limits_change_under_processes(streams, elsewhere, request):
    """As above; writer and reader are processes."""
    name = f"{request.node.name}-{os.getpid()}"
    table = SharedTable.create(streams.struct, RATIO, BATCH, name, seed=0)
    children = [
        elsewhere(until_closed, name, streams, lambda client: streams.add_to(client, ids(3))),
        elsewhere(
            until_closed, name, streams, lambda client: streams.check(client.sample(5.0).trajectory)
        ),
    ]
    until(lambda: table.info().samples > 0, "both processes", 60.0)
    for round_ in range(30):
        before = table.reconfigure(**SOME[round_ % len(SOME)])
        target = before.inserts + 60
        until(lambda target=target: table.info().inserts >= target, "60 inserts", WAIT_S)
    margins = table.observed_margins()
    table.close()
    assert [child.wait(20.0) for child in children] == [0, 0]
    assert min(margins) >= -1e-6


@pytest.mark.parametrize(
    ("schedule", "changes", "message"),
    [
        ("lockstep", {"samples_per_insert": 1.0}, "runs in lockstep"),
        ("lockstep", {"priority_exponent": 1.0}, "runs in lockstep"),
        ("rounds", {"samples_per_insert": None}, "a round would have no last batch"),
        ("rounds", {"samples_per_insert": 1.0}, None),
        ("", {"samples_per_insert": None}, None),
    ],
)
def test_a_schedule_that_needs_a_setting_keeps_it(schedule, changes, message):
    struct = specs.trajectory_struct(SPEC, (), ())
    name = f"schedule-{uuid.uuid4().hex}"
    table = SharedTable.create(struct, RATIO, BATCH, name, schedule=schedule)
    try:
        other = SharedTable.open(name, timeout=WAIT_S)  # as another process would
        if message is None:
            other.reconfigure(**changes)
            return
        before = other.info()
        with pytest.raises(ConfigError, match=message):
            other.reconfigure(**changes)
        assert other.info() == before
    finally:
        table.close()
