"""A new unroll has the largest priority so far (Schaul et al. 2016)."""

import numpy as np
import pytest

from distrl.replay.buffer import ReplayConfig

T = 2
CONFIG = ReplayConfig("prioritized", T, max_size=8, priority_exponent=0.5)
KEYS = np.arange(4, dtype=np.uint64)


def ids(first, count):
    return np.arange(first, first + count, dtype=np.int32)


def chances(client):
    """Returns the probability of each stream's unroll, of those that a big sample has."""
    trajectory = client.sample(5.0).trajectory
    pairs = zip(trajectory.stream_id.tolist(), trajectory.probability.tolist(), strict=True)
    return dict(sorted(pairs))


def expected(priorities):
    weights = np.sqrt(priorities)
    return dict(enumerate(weights / weights.sum()))


@pytest.mark.parametrize("make_replay", ["local", "shared"], indirect=True)
def test_new_unrolls_have_the_largest_priority_so_far(make_replay, streams):
    replay = make_replay(CONFIG, 64)
    writer, reader = replay.client(), replay.client()
    streams.add_to(writer, ids(0, 4), T + 1)
    assert chances(reader) == pytest.approx(dict.fromkeys(range(4), 0.25))
    reader.update_priorities(KEYS, np.array([0.25, 9.0, 63.0, 4.0]))
    reader.update_priorities(KEYS[2:3], np.array([0.5]))  # the largest is no unroll's any more
    streams.add_to(writer, ids(4, 1), T + 1)
    want = expected([0.25, 9.0, 0.5, 4.0, 63.0])
    got = chances(reader)
    assert got == pytest.approx({i: want[i] for i in got})
    assert 4 in got
    # A table that was uniform meanwhile knows it as well.
    writer.reconfigure(table="uniform")
    writer.reconfigure(table="prioritized")
    reader.update_priorities(KEYS[:1], np.array([7.0]))
    got = chances(reader)
    want = expected([7.0, 63.0, 63.0, 63.0, 63.0])
    assert got == pytest.approx({i: want[i] for i in got})


@pytest.mark.parametrize("make_replay", ["local", "shared"], indirect=True)
def test_a_saved_table_keeps_the_largest_priority(make_replay, streams, tmp_path):
    replay = make_replay(CONFIG, 64)
    client = replay.client()
    streams.add_to(client, ids(0, 4), T + 1)
    client.update_priorities(KEYS[:1], np.array([63.0]))
    client.update_priorities(KEYS[:1], np.array([0.5]))
    client.save(tmp_path / "table", 10.0)
    replay.close()
    client = make_replay(CONFIG, 64, saved=tmp_path / "table").client()
    streams.add_to(client, ids(4, 1), T + 1)
    want = expected([0.5, 1.0, 1.0, 1.0, 63.0])
    got = chances(client)
    assert got == pytest.approx({i: want[i] for i in got})
