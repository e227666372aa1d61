"""Several Reverb servers as one replay: each unroll, each shard, each limit."""

import math
import socket
import subprocess
import sys
import threading
import time
from collections import Counter

import numpy as np
import pytest

from distrl.errors import DeadlineExceeded
from distrl.replay.buffer import ReplayConfig
from distrl.replay.remote.sharded import ShardedReplayBuffer
from distrl.replay.reverb import calls

T = 4


ONE, OTHER = np.arange(4, dtype=np.int32), np.arange(4, 8, dtype=np.int32)


with_reverb = pytest.mark.parametrize("make_replay", ["reverb"], indirect=True)


@pytest.fixture
def make_shards(make_replay):
    """`make_shards(config, batch_size, per_item=1)`: the servers, and the learner's client."""
    made = []

    def make(config, batch_size, per_item=1, saved=(None, None), stop=None):
        share = per_item * math.ceil(batch_size / per_item / config.num_shards)
        servers = [make_replay(config.of_shard(), share, per_item, each) for each in saved]
        learner = ShardedReplayBuffer(
            [server.client(stop) for server in servers],
            config,
            batch_size,
            seed=0,
            stop=stop,
            unrolls_per_item=per_item,
        )
        made.append(learner)
        return servers, learner

    yield make
    for learner in made:
        learner.close()


@with_reverb
def test_each_unroll_of_a_queue_is_taken_once(make_shards, streams, make_streams):
    servers, learner = make_shards(
        ReplayConfig("queue", T, 16, num_shards=2, backend="reverb"), 8, 4
    )
    count = 50
    adding = [
        threading.Thread(target=make_streams().add_to, args=(server.client(), ids, count * T + 1))
        for server, ids in zip(servers, (ONE, OTHER))
    ]
    for thread in adding:
        thread.start()
    seen = []
    for _ in range(count):
        seen += streams.check(learner.sample(20.0).trajectory)
    for thread in adding:
        thread.join(10.0)
    assert sorted(seen) == [(i, 0, k * T) for i in range(8) for k in range(count)]
    for i in range(8):  # the order within a stream
        assert [start for stream, _, start in seen if stream == i] == list(range(0, count * T, T))
    assert [info[3:5] for info in learner.infos()] == [(4 * count, 4 * count)] * 2
    assert learner.info()[1:5] == (0, 16, 8 * count, 8 * count)


@with_reverb
def test_a_batch_does_not_wait_for_an_empty_shard(make_shards, streams):
    servers, learner = make_shards(
        ReplayConfig("queue", T, 16, num_shards=2, backend="reverb"), 8, 4
    )
    actor = servers[1].client()
    adding = threading.Thread(target=streams.add_to, args=(actor, OTHER, 20 * T + 1))
    adding.start()
    seen = []
    for _ in range(10):
        seen += streams.check(learner.sample(10.0).trajectory)
    adding.join(10.0)
    assert seen == [(i, 0, k * T) for k in range(20) for i in range(4, 8)]
    with pytest.raises(DeadlineExceeded, match=r"80 inserts, 80 samples"):
        learner.sample(0.2)
    assert not learner.can_sample()
    streams.add_to(servers[0].client(), ONE, T + 1)
    streams.add_to(actor, OTHER, T)
    assert {i for i, _, _ in streams.check(learner.sample(10.0).trajectory)} == set(range(8))


@with_reverb
def test_limits_hold_in_each_shard_alone(make_shards, streams):
    config = ReplayConfig(
        "uniform", T, 64, min_size_to_sample=8, samples_per_insert=2.0, error_buffer=16.0,
        num_shards=2, backend="reverb",
    )  # fmt: skip
    servers, learner = make_shards(config, 4)
    assert learner.info().limits == config.limits(4)  # of one table
    actor = servers[0].client()
    streams.add_to(actor, ONE, T)
    for k in range(1, 4):  # 4 unrolls, 8, 12 of one shard; the other has nothing
        streams.add_to(actor, ONE, 1 if k == 1 else T)
        actor.flush()
        # All samples that inserts * 2 - samples >= 2 * 4 - 8 admits.
        deadline = time.monotonic() + 10
        while learner.infos()[0].samples < 8 * k - max(0, 8 * k - 8 - 4):
            learner.can_sample()
            assert time.monotonic() < deadline, learner.infos()
            time.sleep(0.01)
        for _ in range(2):  # those eight; what the server has sampled may still be on its way
            assert {i for i, _, _ in streams.check(learner.sample(5.0).trajectory)} <= set(ONE)
        assert not learner.can_sample()
    assert [info[3:5] for info in learner.infos()] == [(12, 24), (0, 0)]
    streams.add_to(servers[1].client(), OTHER, T + 1)
    assert {i for i, _, _ in streams.check(learner.sample(5.0).trajectory)} <= set(OTHER)


@with_reverb
def test_unrolls_of_all_shards_are_as_likely(make_shards, streams):
    servers, learner = make_shards(
        ReplayConfig("uniform", T, 64, num_shards=2, backend="reverb"), 50
    )
    streams.add_to(servers[0].client(), ONE, 2 * T + 1)  # 8 unrolls
    streams.add_to(servers[1].client(), OTHER, 6 * T + 1)  # 24
    for server, size in zip(servers, (8, 24)):
        while server.client().info().size < size:
            time.sleep(0.01)
    learner.sample(10.0)
    seen = Counter()
    for _ in range(40):
        sample = learner.sample(10.0)
        seen.update(streams.check(sample.trajectory))
        first = sample.trajectory.stream_id < 4
        # 0.98 of the draws by number of unrolls, 0.02 uniform.
        each = np.where(first, (0.98 / 4 + 0.01) / 8, (0.98 * 3 / 4 + 0.01) / 24)
        np.testing.assert_allclose(sample.trajectory.probability, each, rtol=1e-5)
    assert len(seen) == 32 and sum(seen.values()) == 2000
    assert abs(sum(n for (i, _, _), n in seen.items() if i < 4) - 510) < 100  # five deviations


@with_reverb
def test_priorities_of_all_shards_are_those_of_one_table(make_shards, streams):
    config = ReplayConfig(
        "prioritized", T, 16, priority_exponent=0.5, num_shards=2, backend="reverb"
    )
    servers, learner = make_shards(config, 32)
    clients = [server.client() for server in servers]
    for client, ids in zip(clients, (ONE, OTHER)):
        streams.add_to(client, ids, T + 1)
        client.flush()
    keys = {}
    deadline = time.monotonic() + 10
    while len(keys) < 8:
        assert time.monotonic() < deadline
        sample = learner.sample(5.0)
        keys.update(zip(sample.trajectory.stream_id.tolist(), sample.key.tolist()))
    priorities = np.array([0, 1, 4, 9, 0, 16, 25, 36], np.float64)
    learner.update_priorities(np.array([keys[i] for i in range(8)], np.uint64), priorities)
    for _ in range(8):  # fetched before
        learner.sample(5.0)
    total = np.sqrt(priorities).sum()
    for _ in range(20):
        sample = learner.sample(5.0)
        stream = sample.trajectory.stream_id
        within = np.sqrt(priorities)[stream] / np.where(stream < 4, 6, 15)
        shard = 0.98 * np.where(stream < 4, 6, 15) / total + 0.01
        np.testing.assert_allclose(sample.trajectory.probability, shard * within, rtol=1e-4)


SERVER = """
import sys, reverb
server = reverb.Server([reverb.Table.queue("task-1", 4)], int(sys.argv[1]))
print("up", flush=True)
sys.stdin.read()
"""


class Server:
    """A Reverb server with the queue "task-1" in its own process."""

    def __init__(self, port):
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(port)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        assert self.process.stdout.readline() == "up\n"

    def kill(self):
        self.process.kill()
        self.process.communicate(timeout=10)


@pytest.mark.slow
@with_reverb
def test_a_dead_shard_is_left_out_until_it_returns(make_replay, streams, monkeypatch):
    import reverb

    from distrl.replay.reverb.buffer import ReverbReplayBuffer

    monkeypatch.setattr(calls, "_CALL_TIMEOUT", 1)
    monkeypatch.setattr(calls, "_WATCH_INTERVAL", 0.2)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = ReplayConfig("queue", T, 16, num_shards=2, backend="reverb")
    steady = make_replay(config.of_shard(), 4, 4)

    def client():
        return ReverbReplayBuffer(
            reverb.Client(f"127.0.0.1:{port}"), streams.struct, config.of_shard(), 4, "task-1",
            unrolls_per_item=4, reconnect_timeout=30.0,
        )  # fmt: skip

    server = Server(port)
    actor, dying = steady.client(), client()
    learner = ShardedReplayBuffer(
        [steady.client(), client()], config, 8, seed=0, unrolls_per_item=4
    )
    try:
        streams.add_to(actor, ONE, T + 1)
        streams.add_to(dying, OTHER, T + 1)
        assert len(streams.check(learner.sample(10.0).trajectory)) == 8
        server.kill()
        for _ in range(5):  # the other shard continues
            streams.add_to(actor, ONE, 2 * T)
            assert {i for i, _, _ in streams.check(learner.sample(10.0).trajectory)} == set(ONE)
        server = Server(port)
        dying = client()
        streams.add_to(dying, OTHER, T + 1, life=1)
        streams.add_to(actor, ONE, T)
        seen = streams.check(learner.sample(30.0).trajectory)
        assert sorted(seen) == [
            *((i, 0, 11 * T) for i in range(4)),
            *((i, 1, 0) for i in range(4, 8)),
        ]
    finally:
        learner.close()
        dying.close()
        server.kill()


@with_reverb
def test_each_shard_is_saved_and_comes_back(make_shards, streams, tmp_path):
    config = ReplayConfig("uniform", T, 64, num_shards=2, backend="reverb")
    servers, learner = make_shards(config, 4)
    for server, ids, count in zip(servers, (ONE, OTHER), (2, 3)):
        client = server.client()
        streams.add_to(client, ids, count * T + 1)
        client.flush()
    counts = learner.save(tmp_path / "table", 10.0)
    assert counts == {"size": 20, "inserts": 20, "samples": 0}
    saved = [tmp_path / "table" / str(i) for i in range(2)]
    _, again = make_shards(config, 4, saved=saved)
    assert [info[1:4] for info in again.infos()] == [(8, 32, 8), (12, 32, 12)]
    assert len(streams.check(again.sample(10.0).trajectory)) == 4
