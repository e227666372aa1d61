"""A bound on the age of what is consumed: exact for every table, whatever the writers' delays."""

import math

import numpy as np
import pytest

from distrl.errors import DeadlineExceeded
from distrl.param_versions import lags
from distrl.replay.age_bound import AgeBound
from distrl.replay.buffer import ReplayConfig
from distrl.replay.config import RateLimits
from distrl.replay.table.rate_limiter import RateLimiter
from distrl.runtime.patience import Unless
from distrl.types import Sample, Trajectory
from tests.support.selection import full

T, SIZE, STREAMS = 3, 4, np.arange(6, dtype=np.int32)
TABLES = {
    "queue": ReplayConfig("queue", T, 32),
    "uniform": ReplayConfig("uniform", T, 64, 8, samples_per_insert=1.0),
    "prioritized": ReplayConfig("prioritized", T, 64, 8, samples_per_insert=1.0),
}


class Writer:
    """Adds steps of streams, chosen by any version."""

    def __init__(self, buffer, streams):
        self._buffer, self._streams = buffer, streams

    def add(self, version):
        wanted = self._buffer.needs_state(STREAMS, 0)
        timestep, inference = self._streams.step(STREAMS, 0, wanted)
        self._buffer.add(STREAMS, timestep, inference._replace(version=version), 0)


def batches(bound, kind):
    """Yields batches until the table has none; the consumer's version may change meanwhile."""
    while bound.has_more() if kind == "reverb" else bound.can_sample():
        try:
            yield bound.sample(0.3 if kind == "reverb" else 5.0)
        except DeadlineExceeded:
            return


@pytest.mark.parametrize("max_lag", [0, full(2)])
@pytest.mark.parametrize("table", TABLES)
def test_no_step_is_older(make_replay, streams, request, table, max_lag):
    """With writers up to five versions behind: batches are whole, none has an older step."""
    kind = request.node.callspec.params["make_replay"]
    replay = make_replay(TABLES[table], SIZE)
    writer, reader = Writer(replay.client(), streams), replay.client()
    now, consumed, rng = 0, [], np.random.default_rng(max_lag)
    bound = AgeBound(reader, max_lag, lambda: now)
    rounds = 12 if kind == "reverb" else 60
    for _ in range(rounds):
        acts = max(0, now - int(rng.integers(6)))
        for _ in range(T):
            writer.add(acts)
        for sample in batches(bound, kind):
            streams.check(sample.trajectory._replace(version=_rising(sample)))
            assert len(sample.key) == sample.trajectory.version.shape[1] == SIZE
            assert (now - sample.trajectory.version[:-1] <= max_lag).all()
            consumed.append(sample)
            now += 1
    assert consumed
    assert bound.dropped
    if table == "queue" and kind != "reverb":  # which samples ahead
        keys = np.concatenate([sample.key for sample in consumed])
        assert len(set(keys.tolist())) == len(keys)
        info = reader.info()
        held = info.inserts - info.size - bound.dropped - len(keys)
        assert 0 <= held < SIZE


def _rising(sample: Sample) -> np.ndarray:
    """Returns versions as `Streams.check` wants them."""
    shape = sample.trajectory.version.shape
    return np.broadcast_to(np.arange(shape[0])[:, None], shape)


@pytest.mark.parametrize("table", ["uniform", "prioritized"])
def test_what_is_too_old_leaves_the_table(make_replay, streams, request, table):
    """A table is filled up like a new one, whose inserts do not wait for its samples."""
    replay = make_replay(TABLES[table], SIZE)
    client = replay.client(insert_timeout=5.0)
    writer, now = Writer(client, streams), 0
    bound = AgeBound(client, 1, lambda: now)
    for _ in range(2 * T + 1):
        writer.add(0)  # two unrolls of each stream
    assert bound.sample(5.0).key.size == SIZE
    now = 2
    if request.node.callspec.params["make_replay"] == "reverb":
        with pytest.raises(DeadlineExceeded):
            bound.sample(0.5)
        assert client.info().size < 12  # what was seen to be too old
        return
    assert not bound.can_sample()
    assert client.info().size == 0
    for _ in range(5 * T):
        writer.add(2)
        if bound.can_sample():
            break
    sample = bound.sample(5.0)
    assert (sample.trajectory.version[:-1] >= 1).all()


class Source:
    """A replay whose batches have these versions in turn, and then the last one."""

    is_prioritized = False

    def __init__(self, *versions):
        self.versions, self.discarded = list(versions), 0

    def sample(self, timeout):
        parts = {name: np.zeros(2) for name in Trajectory._fields}
        parts["version"] = np.full((T + 1, 2), self.versions[0], np.int32)
        del self.versions[: len(self.versions) > 1]
        return Sample(Trajectory(**parts), np.zeros(2, np.uint64))

    def discard(self, keys, oldest):
        self.discarded += len(keys)


def test_a_bound_under_which_nothing_is_ever_consumed_is_told():
    source, now = Source(0, 46, 45, 45), 50
    bound = AgeBound(source, 3, lambda: now)
    timeout = Unless(60.0, lambda: len(source.versions) == 1)
    with pytest.raises(
        DeadlineExceeded, match=r"max_policy_lag=3: all 6 unrolls .* older, .* of age 4; raise"
    ):
        bound.sample(timeout)
    assert bound.dropped == 6
    now = 60
    with pytest.raises(DeadlineExceeded, match=r"all 2 unrolls .* the youngest of age 15;"):
        bound.sample(timeout)


def test_a_batch_that_is_young_enough_is_passed_on_as_it_is():
    source = Source(4)
    bound = AgeBound(source, 1, lambda: 5)
    sample = bound.sample(1.0)
    assert sample.trajectory.version.shape == (T + 1, 2)
    assert (bound.dropped, source.discarded) == (0, 0)


def test_versions_that_are_yet_to_come_were_lost_and_are_dropped():
    now = 5
    source = Source(9)
    bound = AgeBound(source, 10, lambda: now)
    with pytest.raises(DeadlineExceeded, match="max_policy_lag=10: all"):
        bound.sample(0.02)
    assert bound.dropped
    now = 9
    assert bound.sample(1.0).trajectory.version.max() == 9


def test_a_table_that_lost_unrolls_is_filled_like_a_new_one():
    fresh = RateLimits(2.0, 10, 16.0, 24.0)
    limiter = RateLimiter(fresh)
    limiter.inserts = 4
    assert limiter.refilled(fresh) == fresh  # as it was never full
    limiter.inserts, limiter.samples, limiter.deletes = 50, 90, 47
    limiter.limits = limiter.refilled(fresh)
    assert not limiter.can_sample(1)
    limiter.inserts += 7
    error = limiter.error - limiter.limits.min_diff
    assert error == 4  # in the middle, as in a new table of 10 unrolls
    assert limiter.can_sample(4)
    free = RateLimits(1.0, 10, -math.inf, math.inf)
    limiter.limits = free
    assert limiter.refilled(free) == free


def test_a_bound_beyond_all_lags_removes_nothing_else_from_the_table():
    """Versions that are yet to come were made by a life of the learner that was lost."""
    source, oldest = Source(9), []
    source.discard = lambda keys, version: oldest.append(version)
    bound = AgeBound(source, 3 * 10**9, lambda: 5)
    with pytest.raises(DeadlineExceeded):
        bound.sample(0.02)
    assert bound.dropped
    assert (lags(oldest[0], np.arange(6, dtype=np.int32)) <= 0).all()  # none is older
