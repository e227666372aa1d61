"""A served table as a shard: what leaves it, and what changes while it is used."""

import numpy as np
import pytest

from distrl.replay.buffer import ReplayConfig
from distrl.replay.remote.sharded import ShardedReplayBuffer
from distrl.replay.served.shard import ServedShard

T, STREAMS = 4, np.arange(4, dtype=np.int32)


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
