"""The streams of one policy in an actor."""

import numpy as np
import pytest
from dm_env import specs

from distrl.policy_streams import PolicyStreams
from distrl.replay.buffer import ReplayConfig
from distrl.replay.local.buffer import LocalReplayBuffer
from distrl.replay.local.table import LocalTable
from distrl.runtime.lives import next_life
from distrl.specs import EnvironmentSpec, timestep_struct, trajectory_struct, zeros
from distrl.types import Inference, StepType

SPEC = EnvironmentSpec(
    specs.Array((1,), np.float32, "observation"), specs.DiscreteArray(2, np.int32, "action")
)
STREAMS = np.arange(2, dtype=np.int32)


class Source:
    """Always action 0; restarts on demand."""

    def __init__(self):
        self.life = 0

    def inference(self, stream_ids, timestep, life=0, with_state=False):
        zero = np.zeros(len(stream_ids), np.int32)
        return Inference(zero, zero.astype(np.float32), 0, (), self.life)


def lives_of_unrolls(life):
    """Returns the streams' lives in unrolls from before and after an inferencer's restart."""
    struct = trajectory_struct(SPEC, specs.Array((), np.float32, "extras"), ())
    config = ReplayConfig(unroll_length=2, max_size=8)
    replay = LocalReplayBuffer(LocalTable(struct, config, 2), struct, config, 2)
    source = Source()
    streams = PolicyStreams(source, replay, SPEC, 2, life)
    step = zeros(timestep_struct(SPEC), 2)._replace(step_type=np.full(2, StepType.MID, np.int8))
    given = []
    for source.life in (0, 1):
        for _ in range(3):
            streams.store(STREAMS, step, streams.infer(STREAMS, step))
        assert replay.can_sample()
        given.append(replay.sample(1.0).trajectory.life)
    return given


@pytest.mark.parametrize("life", [0, 2**15 - 1, 2**15, 2**16 + 1, 2**31])
def test_streams_of_any_life_act_and_begin_a_new_one_when_the_inferencer_restarts(life):
    before, after = lives_of_unrolls(life)
    assert before.dtype == after.dtype == np.int32
    assert (before == before[0]).all() and (after == before[0] + 1).all()


def test_streams_act_after_the_lives_of_a_run_were_lost(tmp_path):
    known = lives_of_unrolls(next_life(tmp_path, "actor/0"))
    (tmp_path / "lives.json").write_text("")
    life = next_life(tmp_path, "actor/0", say=lambda line: None)
    assert not np.isin(lives_of_unrolls(life), known).any()
