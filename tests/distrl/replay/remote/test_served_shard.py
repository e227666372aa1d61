"""A served table as a shard: what leaves it, and what changes while it is used."""

import numpy as np
import pytest

from distrl.replay.buffer import ReplayConfig
from distrl.replay.remote.sharded import ShardedReplayBuffer
from distrl.replay.served.shard import ServedShard

T, STREAMS = 4, np.arange(4, dtype=np.int32)
AHEAD = 40  # batches, more than are sampled ahead


@pytest.fixture
def make_learner(make_replay):
    """`make_learner(config)`: a writer of the table, and the learner's client of it as a shard."""
    made = []

    def make(config):
        replay = make_replay(config, 4)
        learner = ShardedReplayBuffer([ServedShard(replay.client(), 1, 1, None)], config, 4, seed=0)
        made.append(learner)
        return replay.client(), learner

    yield make
    for learner in made:
        learner.close()


@pytest.mark.parametrize("make_replay", ["served"], indirect=True)
@pytest.mark.parametrize("table", ["uniform", "prioritized"])
def test_unrolls_that_are_too_old_leave_it(make_learner, streams, table):
    writer, learner = make_learner(ReplayConfig(table, T, 64))
    streams.add_to(writer, STREAMS, 2 * T + 1)  # versions 1 to 4, and 5 to 8
    learner.discard(np.zeros(0, np.uint64), 1)
    assert learner.info().size == 8
    learner.discard(np.zeros(0, np.uint64), T + 1)
    assert learner.info().size == 4


@pytest.mark.parametrize("make_replay", ["served"], indirect=True)
def test_it_gets_priorities_from_when_it_becomes_prioritized(make_learner, streams):
    writer, learner = make_learner(ReplayConfig("uniform", T, 64))
    streams.add_to(writer, STREAMS, T + 1)
    keys = {}
    while len(keys) < 4:
        sample = learner.sample(10.0)
        keys.update(zip(sample.trajectory.stream_id.tolist(), sample.key.tolist()))
    order = np.array([keys[stream] for stream in range(4)], np.uint64)
    learner.update_priorities(order, np.zeros(4))  # no effect: it is uniform
    assert not learner.is_prioritized
    writer.reconfigure(table="prioritized", priority_exponent=1.0)
    for _ in range(AHEAD):
        learner.sample(10.0)
    assert learner.is_prioritized
    learner.update_priorities(order, np.array([0.0, 0.0, 3.0, 1.0]))
    for _ in range(AHEAD):
        learner.sample(10.0)
    sample = learner.sample(10.0)
    stream = sample.trajectory.stream_id
    np.testing.assert_allclose(sample.trajectory.probability, np.where(stream == 2, 0.75, 0.25))
    assert set(stream.tolist()) <= {2, 3}
    writer.reconfigure(table="uniform")
    for _ in range(AHEAD):
        learner.sample(10.0)
    assert not learner.is_prioritized
