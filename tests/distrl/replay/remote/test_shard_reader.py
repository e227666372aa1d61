"""Shards that fail, return and stop, without Reverb."""

import threading

import numpy as np
import pytest

from distrl.errors import DeadlineExceeded, Stopped
from distrl.replay.buffer import ReplayConfig, ReplayWriter
from distrl.replay.remote.items import Item
from distrl.replay.remote.sharded import ShardedReplayBuffer
from distrl.types import Sample


def item(key=0):
    return Item(key, 1.0, 1.0, 1, None)


class Fake:
    """A shard whose items are their keys."""

    is_prioritized = False

    def __init__(self, keys):
        self.keys = iter(keys)
        self.lost = []
        self.back = threading.Event()
        self.closed = threading.Event()

    def make_sampler(self):
        return self

    def watch(self):
        return lambda: None

    def item(self, sampler):
        key = next(self.keys, None)
        if key is None:
            assert self.closed.wait(10.0)
            raise RuntimeError("closed")
        if key < 0:
            raise RuntimeError("the server is gone")
        return item(key)

    def reconnect(self, error, lost):
        self.lost.append(str(error))
        if not self.back.wait(10.0):
            raise error

    def batch(self, items):
        return Sample(None, np.array([item.key for item in items], np.uint64))

    def info(self):
        raise RuntimeError("the server is gone")

    def Close(self):  # noqa: N802 -- as Reverb's sampler
        self.closed.set()

    def close(self):
        self.closed.set()


@pytest.mark.parametrize("table", ["queue", "uniform"])
def test_a_shard_fails_and_returns(table):
    one, other = Fake(range(100)), Fake([100, -1, *range(101, 200)])
    learner = ShardedReplayBuffer(
        [one, other], ReplayConfig(table, num_shards=2, backend="reverb"), 2, seed=0
    )
    seen = [key for _ in range(40) for key in learner.sample(10.0).key.tolist()]
    assert other.lost == ["the server is gone"]
    assert seen.count(100) == 1
    assert [key for key in seen if key < 100] == list(range(79))
    other.back.set()
    seen += [key for _ in range(50) for key in learner.sample(10.0).key.tolist()]
    assert [key for key in seen if key >= 100] == list(range(100, 100 + sum(k > 99 for k in seen)))
    assert len(set(seen)) == 180 and max(seen) > 130
    learner.close()


def test_a_shard_that_does_not_return_is_named(monkeypatch):
    monkeypatch.setattr(Fake, "reconnect", lambda self, error, lost: _raise(error))
    learner = ShardedReplayBuffer(
        [Fake([0]), Fake([-1])], ReplayConfig(num_shards=2, backend="reverb"), 2, seed=0
    )
    with pytest.raises(RuntimeError, match="the server is gone"):
        for _ in range(3):
            learner.sample(10.0)
    learner.close()


def test_a_stopping_program_ends_the_wait():
    stop = threading.Event()
    shards = [Fake([]), Fake([])]
    learner = ShardedReplayBuffer(
        shards, ReplayConfig(num_shards=2, backend="reverb"), 2, seed=0, stop=stop
    )
    with pytest.raises(DeadlineExceeded, match="the server is gone; the server is gone"):
        learner.sample(0.1)
    stop.set()
    with pytest.raises(Stopped):
        learner.sample(10.0)
    learner.close()


def _raise(error):
    raise error


def test_a_priority_goes_to_its_own_shard():
    class Shard:
        is_prioritized = True

        def __init__(self):
            self.sent, self.largest = [], []

        def send_priorities(self, keys, priorities, largest):
            self.sent += zip(keys.tolist(), priorities.tolist())
            self.largest.append(largest)

        def close(self):
            pass

    shards = [Shard(), Shard()]
    learner = ShardedReplayBuffer(
        shards, ReplayConfig("prioritized", num_shards=2, backend="reverb"), 2, seed=0
    )
    learner._remember(np.array([11, 12], np.uint64), [1, 0])
    learner.update_priorities(np.array([11, 12, 13], np.uint64), np.array([1.0, 2.0, 3.0]))
    assert [each.sent for each in shards] == [[(12, 2.0), (13, 3.0)], [(11, 1.0), (13, 3.0)]]
    learner.update_priorities(np.array([11], np.uint64), np.array([4.0]))
    assert [each.largest for each in shards] == [[3.0, 4.0]] * 2
    with pytest.raises(ValueError, match="priority -1"):
        learner.update_priorities(np.array([11], np.uint64), np.array([-1.0]))
    assert not isinstance(learner, ReplayWriter)
    learner.close()
    with pytest.raises(Stopped):
        learner.sample(1.0)
