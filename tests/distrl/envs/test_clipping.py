"""Environments get continuous actions within their bounds, whatever pool steps them."""

import gymnasium
import numpy as np
import pytest
from dm_env import specs as dm_specs

from distrl.envs import Pool, PoolConfig, PythonEnvironment, WrapperConfig
from distrl.envs.clipping import ActionClip
from distrl.errors import SpecError
from distrl.specs import EnvironmentSpec
from distrl.testing import check_pool

BOX = dm_specs.BoundedArray((2,), np.float32, [-1, -np.inf], [1, 2], "action")
NEST = {"arm": BOX, "key": dm_specs.DiscreteArray(3, np.int32), "free": dm_specs.Array((), "f4")}
FAR = np.array([[-9, -9], [9, 9], [0.5, 0.5]], np.float32)
CLIPPED = [[-1, -9], [1, 2], [0.5, 0.5]]


class Own(Pool):
    """Episodes of one step, of an environment whose only matter is what it was sent."""

    def __init__(self, num_envs, wait_num=None, action=BOX, **settings):
        spec = EnvironmentSpec(dm_specs.Array((), np.float32), action)
        super().__init__("own", spec, num_envs, wait_num or num_envs, **settings)
        self.count = np.zeros(num_envs, np.int8)
        self.sent, self.ready = [], []

    def _start(self):
        self.ready += self.env_ids.tolist()

    def _send(self, action, env_ids):
        self.sent.append(action)
        self.count[env_ids] += 1
        self.ready += env_ids.tolist()

    def _recv(self):
        ids = np.array(self.ready[: self.wait_num], np.int32)
        del self.ready[: self.wait_num]
        zeros = np.zeros(len(ids), np.float32)
        return self.count[ids] % 2 * np.int8(2), zeros, zeros + 1, zeros, ids, ()

    def close(self):
        pass


@pytest.mark.parametrize("wait_num", [3, 2])
def test_a_pool_of_ones_own_gets_them_and_everybody_else_what_was_sent(wait_num):
    pool = Own(3, wait_num)
    pool.start()
    env_ids = pool.recv().env_id
    action = FAR[env_ids]
    pool.send(action, env_ids if pool.is_async else pool.env_ids)
    np.testing.assert_array_equal(pool.sent[0], np.array(CLIPPED)[env_ids])
    assert pool.sent[0].dtype == np.float32
    np.testing.assert_array_equal(action, FAR[env_ids])  # the caller's is left alone
    step = pool.recv()
    wanted = np.where((step.step_type == 0)[:, None], 0, FAR[step.env_id])
    np.testing.assert_array_equal(step.prev_action, wanted)


def test_parts_of_a_nest_that_have_no_bounds_stay_the_same_arrays():
    pool = Own(3, action=NEST)
    pool.reset()
    action = {"arm": FAR, "key": np.arange(3, dtype=np.int32), "free": FAR[:, 0]}
    step = pool.step(action)
    np.testing.assert_array_equal(pool.sent[0]["arm"], CLIPPED)
    assert all(pool.sent[0][part] is action[part] for part in ("key", "free"))
    np.testing.assert_array_equal(step.prev_action["arm"], FAR)


@pytest.mark.parametrize("action", [BOX, NEST["key"], NEST["free"]])
def test_actions_are_not_touched_where_there_is_nothing_to_clip(action):
    pool = Own(3, action=action, clip_actions=action is not BOX)
    pool.reset()
    sent = FAR if action is BOX else np.ones(3, action.dtype)
    pool.step(sent)
    assert pool.sent[0] is sent


@pytest.mark.parametrize(
    "action", [FAR[:, :1], FAR[:1], FAR[0], FAR.astype(np.float64), FAR.tolist(), {"arm": FAR}]
)
def test_what_has_another_form_is_left_for_the_pools_check(action):
    assert ActionClip(BOX)(action, 3) is action
    other_names = {"leg": action}
    assert ActionClip({"arm": BOX})(other_names, 3) is other_names


class Echo(gymnasium.Env):
    """Its reward is its action."""

    observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), float(action[0]), False, False, {}


@pytest.mark.parametrize("clip_actions", [True, False])
@pytest.mark.parametrize("kind", ["loop", "threads", "processes"])
def test_python_environments_get_them_clipped_unless_told_otherwise(kind, clip_actions):
    pool = PythonEnvironment(
        Echo, wrappers=WrapperConfig(clip_actions), pool=PoolConfig(kind=kind, num_workers=1)
    ).make_pool(2, 2, [0, 1])
    pool.reset()
    step = pool.step(np.array([[9], [-0.5]], np.float32))
    pool.close()
    np.testing.assert_array_equal(step.reward, [1 if clip_actions else 9, -0.5])
    np.testing.assert_array_equal(step.prev_action, [[9], [-0.5]])


def test_python_environments_refuse_wrong_actions_as_ever():
    pool = PythonEnvironment(Echo, pool=PoolConfig(kind="loop")).make_pool(2, 2, [0, 1])
    pool.reset()
    with pytest.raises(SpecError, match=r"expected float32\[2, 1\], got float32\[1\]"):
        pool.step(np.zeros(1, np.float32))
    pool.close()


@pytest.mark.parametrize("clip_actions", [True, False])
def test_check_pool_sends_actions_beyond_their_bounds(clip_actions):
    pools = []

    def make(num_envs, wait_num, seeds):
        pools.append(Own(num_envs, wait_num, NEST, clip_actions=clip_actions))
        return pools[0]

    check_pool(make, steps=50)
    arms = np.concatenate([sent["arm"] for sent in pools[0].sent])
    assert np.isfinite(arms).all()
    beyond = [(arms[:, 0] < -1).any(), (arms[:, 0] > 1).any(), (arms[:, 1] > 2).any()]
    assert beyond == [not clip_actions] * 3
