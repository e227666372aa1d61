"""New unrolls on Reverb servers have the largest priority so far, of all shards."""

import contextlib

import numpy as np
import pytest

from distrl.replay.buffer import ReplayConfig
from distrl.replay.remote.sharded import ShardedReplayBuffer

reverb = pytest.importorskip(
    "reverb", reason="dm-reverb is not installed (it has wheels for Python 3.10 at most)"
)
from distrl.replay.reverb import max_priority  # noqa: E402
from distrl.replay.reverb.buffer import ReverbReplayBuffer  # noqa: E402
from distrl.replay.reverb.server import reverb_tables  # noqa: E402

T = 2
CONFIG = ReplayConfig("prioritized", T, max_size=16, initial_priority=2.0)
IDS = np.arange(9, dtype=np.int32)
with_reverb = pytest.mark.parametrize("make_replay", ["reverb"], indirect=True)


def add(streams, client, first, count=1):
    streams.add_to(client, IDS[first : first + count], T + 1)
    client.flush()


def priorities(replay):
    """Returns each unroll's priority by stream, as its server samples it."""
    client, seen = replay.client(), {}
    size = client.info().size
    sampler = client.make_sampler()
    with contextlib.closing(client):
        while len(seen) < size:
            item = client.item(sampler)
            batch = client.batch([item]).trajectory
            weight = item.probability * item.mass
            seen[int(batch.stream_id[0])] = round(weight ** (1 / CONFIG.priority_exponent), 6)
        sampler.Close()
    return dict(sorted(seen.items()))


def keys(reader, count):
    """Returns keys by stream."""
    seen = {}
    while len(seen) < count:
        sample = reader.sample(10.0)
        seen.update(zip(sample.trajectory.stream_id.tolist(), sample.key.tolist(), strict=True))
    return np.array([seen[i] for i in sorted(seen)], np.uint64)


@with_reverb
def test_new_unrolls_have_the_largest_priority_so_far(make_replay, streams, monkeypatch, tmp_path):
    replay = make_replay(CONFIG, 4)
    writer, reader = replay.client(), replay.client()
    add(streams, writer, 0, 4)
    assert priorities(replay) == dict.fromkeys(range(4), 2.0)
    of = keys(reader, 4)
    reader.update_priorities(of, np.array([0.25, 9.0, 63.0, 4.0]))
    reader.update_priorities(of[2:3], np.array([0.5]))  # the largest is no unroll's any more
    want = {0: 0.25, 1: 9.0, 2: 0.5, 3: 4.0}
    add(streams, replay.client(), 4)  # at once: a new writer asks first
    assert priorities(replay) == (want := {**want, 4: 63.0})

    monkeypatch.setattr(max_priority, "_INTERVAL", 0.0)
    writer._largest._due = 0.0
    writer._largest.of_new()
    writer._largest._reading.join(10.0)
    add(streams, writer, 5)
    assert priorities(replay) == (want := {**want, 5: 63.0})
    # Another updates priorities, and does not know of the 63.
    other = replay.client()
    other.update_priorities(of[:1], np.array([7.0]))
    other.update_priorities(of[1:2], np.array([8.0]))
    add(streams, replay.client(), 6)
    assert priorities(replay) == (want := {**want, 0: 7.0, 1: 8.0, 6: 63.0})

    reader.save(tmp_path / "table", 10.0)
    replay.close()
    replay = make_replay(CONFIG, 4, saved=tmp_path / "table")
    add(streams, replay.client(), 7)
    assert priorities(replay) == {**want, 7: 63.0}


@with_reverb
def test_the_largest_priority_of_all_shards(make_replay, streams, tmp_path):
    config = ReplayConfig("prioritized", T, max_size=16, num_shards=2, backend="reverb")
    shards = [make_replay(config.of_shard(), 2) for _ in range(2)]
    learner = ShardedReplayBuffer([shard.client() for shard in shards], config, 4, seed=0)
    for shard, first in zip(shards, (0, 4)):
        add(streams, shard.client(), first, 2)
    learner.update_priorities(keys(learner, 4)[:2], np.array([3.0, 63.0]))
    learner.update_priorities(keys(learner, 4)[1:2], np.array([5.0]))
    for shard, first in zip(shards, (2, 6)):
        add(streams, shard.client(), first)
    assert [priorities(shard) for shard in shards] == [
        {0: 3.0, 1: 5.0, 2: 63.0}, {4: 1.0, 5: 1.0, 6: 63.0},
    ]  # fmt: skip
    learner.save(tmp_path / "table", 10.0)
    learner.close()
    again = make_replay(config.of_shard(), 2, saved=tmp_path / "table" / "1")
    add(streams, again.client(), 7)
    assert priorities(again) == {4: 1.0, 5: 1.0, 6: 63.0, 7: 63.0}


@with_reverb
def test_a_new_server_is_told_again_and_an_old_checkpoint_loads(
    make_replay, streams, tmp_path, monkeypatch
):
    made = reverb_tables(CONFIG, streams.struct, 4, streams.table)[:1]  # without the largest
    old = reverb.Server(made, None, reverb.checkpointers.DefaultCheckpointer(str(tmp_path / "r")))
    client = ReverbReplayBuffer(
        reverb.Client(f"127.0.0.1:{old.port}"), streams.struct, CONFIG, 4, streams.table
    )
    monkeypatch.setattr(client._largest, "read", lambda stop: None)  # as clients of before
    add(streams, client, 0, 2)
    client.save(tmp_path / "table", 10.0)
    client.close()
    old.stop()

    replay = make_replay(CONFIG, 4, saved=tmp_path / "table")
    reader = replay.client()
    add(streams, replay.client(), 2)
    assert priorities(replay) == dict.fromkeys(range(3), 2.0)
    reader.update_priorities(keys(reader, 3)[:1], np.array([63.0]))
    server = make_replay(CONFIG, 4)
    reader._client = reverb.Client(server.address)
    reader._largest.connect(reader._client, streams.table)
    reader.update_priorities(np.zeros(1, np.uint64), np.array([5.0]))
    add(streams, server.client(), 8)
    assert priorities(server) == {8: 63.0}
