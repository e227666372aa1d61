"""A time limit and a true end, from the environment to V-trace's targets, worked out by hand."""

import dm_env
import numpy as np
import pytest
from dm_env import specs

from distrl.actor import Actor
from distrl.agents.impala import IMPALAConfig, vtrace
from distrl.envs import PythonEnvironment
from distrl.replay.buffer import ReplayConfig
from distrl.replay.local.buffer import LocalReplayBuffer
from distrl.replay.local.table import LocalTable
from distrl.specs import EnvironmentSpec, trajectory_struct
from distrl.types import Inference


class TwoSteps(dm_env.Environment):
    """Rewards 1 and 2, then the end: a time limit for even seeds, a true end for odd ones."""

    def __init__(self, seed):
        self._limit = seed % 2 == 0
        self._observation = np.array([seed], np.float32)

    def reset(self):
        self._step = 0
        return dm_env.restart(self._observation)

    def step(self, action):
        self._step += 1
        if self._step == 1:
            return dm_env.transition(1.0, self._observation)
        end = dm_env.truncation if self._limit else dm_env.termination
        return end(2.0, self._observation)

    def observation_spec(self):
        return specs.Array((1,), np.float32, "seed")

    def action_spec(self):
        return specs.DiscreteArray(2, np.int32, "action")

    def reward_spec(self):
        return specs.Array((), np.float32, "reward")


class Fixed:
    """Always action 0."""

    def inference(self, stream_ids, timestep, life=0, with_state=False):
        n = len(stream_ids)
        return Inference(np.zeros(n, np.int32), np.zeros(n, np.float32), 0, ())


# Discount 0.5, every value 10, on policy. By hand, with V = 10:
#   into a time limit  target 2 + 0.5 * 10 = 7     advantage 2 + 0.5 * 10 - 10 = -3
#   the step before    target 1 + 0.5 * 7  = 4.5   advantage 1 + 0.5 * 7  - 10 = -5.5
#   into a true end    target 2                    advantage 2 - 10 = -8
#   the step before    target 1 + 0.5 * 2  = 2     advantage 1 + 0.5 * 2 - 10 = -8
#   the unroll's edge  target 1 + 0.5 * 10 = 6     advantage 1 + 0.5 * 10 - 10 = -4
# From LAST to FIRST there is no transition: no error, and nothing leaks over it.
NONE = None
EXPECTED = {
    # window of 4 transitions beginning at FIRST: F M L F M
    ("limit", 0): [(4.5, -5.5), (7, -3), NONE, (6, -4)],
    ("true", 0): [(2, -8), (2, -8), NONE, (6, -4)],
    # the next one begins at MID: M L F M L
    ("limit", 1): [(7, -3), NONE, (4.5, -5.5), (7, -3)],
    ("true", 1): [(2, -8), NONE, (2, -8), (2, -8)],
    # and the one after at LAST: L F M L F
    ("limit", 2): [NONE, (4.5, -5.5), (7, -3), NONE],
    ("true", 2): [NONE, (2, -8), (2, -8), NONE],
}


@pytest.mark.parametrize("wait_num", [4, 2])
def test_targets_by_hand(wait_num):
    environment = PythonEnvironment(TwoSteps)
    spec = environment.spec()
    struct = trajectory_struct(
        EnvironmentSpec(spec.observation, spec.action),
        specs.Array((), np.float32, "log_prob"),
        (),
    )
    config = ReplayConfig(unroll_length=4, max_size=64)
    replay = LocalReplayBuffer(LocalTable(struct, config, 4), struct, config, 4)
    actor = Actor(
        environment.make_pool(4, wait_num, seeds=range(64)), Fixed(), replay, first_stream=100
    )
    windows = dict.fromkeys(range(100, 104), 0)
    agent = IMPALAConfig(discount=0.5)
    seen = set()
    while len(seen) < len(EXPECTED):
        while not replay.can_sample():
            actor.step()
        trajectory = replay.sample(1.0).trajectory
        step = trajectory.timestep
        rows = step.reward.shape
        made = vtrace(
            agent,
            step.step_type,
            step.reward,
            step.discount,
            np.full(rows, 10.0, np.float32),
            np.zeros((rows[0] - 1, rows[1]), np.float32),
        )
        for column, stream in enumerate(trajectory.stream_id.tolist()):
            window = windows[stream]
            windows[stream] += 1
            key = ("limit" if stream % 2 == 0 else "true", window % 3)
            np.testing.assert_array_equal(step.observation[:, column], stream - 100)
            for t, expected in enumerate(EXPECTED[key]):
                if expected is None:
                    assert made.error[t, column] == 0
                    assert made.advantage[t, column] == 0
                else:
                    target, advantage = expected
                    assert made.target[t, column] == pytest.approx(target)
                    assert made.error[t, column] == pytest.approx(target - 10)
                    assert made.advantage[t, column] == pytest.approx(advantage)
            seen.add(key)
