"""One contract for every pool: which action reaches which environment, and every boundary."""

import random
import time

import gymnasium
import numpy as np
import pytest

from distrl.envs import NativeEnvironment, PythonEnvironment
from distrl.envs.pool_config import PoolConfig
from distrl.errors import SpecError
from distrl.testing import COUNT, ECHO, SEED, STEP, CountingEnvironment
from distrl.types import StepType

NUM_ENVS = 16
PYTHON = ("loop", "threads", "processes")
POOLS = (*PYTHON, "envpool")
WAIT_NUMS = (NUM_ENVS, 5, 1)
EPISODE = 7  # steps of an episode of EnvPool's Pendulum


def same(a, b):
    """As numpy's own assertion, and a hundred times faster."""
    assert np.array_equal(a, b) or np.testing.assert_array_equal(a, b)


class Delayed(CountingEnvironment):
    """Takes a few microseconds, and now and then longer."""

    def __init__(self, seed):
        super().__init__(seed)
        self._random = random.Random(seed)

    def step(self, action):
        until = time.perf_counter() + self._random.random() * 2e-5
        if self._random.random() < 0.002:
            time.sleep(1e-4)
        while time.perf_counter() < until:
            pass
        return super().step(action)


def make(kind, wait_num, builder=Delayed, **settings):
    if kind == "envpool":
        environment = NativeEnvironment("Pendulum-v1", max_episode_steps=EPISODE)
    else:
        environment = PythonEnvironment(builder, pool=PoolConfig(kind=kind, **settings))
    return environment.make_pool(NUM_ENVS, wait_num, range(10, 10 + NUM_ENVS))


class Counted:
    """Follows CountingEnvironments: their id, count and echo are exact."""

    def __init__(self):
        self.kind = np.full(NUM_ENVS, StepType.LAST)
        self.sent = np.full(NUM_ENVS, -1, np.int32)
        self.count = np.full(NUM_ENVS, -1.0)
        self.turn = 0

    def check(self, step):
        ids, kind, obs = step.env_id, step.step_type, step.observation
        assert len(set(ids.tolist())) == len(ids)
        first, last = kind == StepType.FIRST, kind == StepType.LAST
        same(first, self.kind[ids] == StepType.LAST)
        sent = self.sent[ids]
        same(step.prev_action, np.where(first.reshape(-1, *[1] * (sent.ndim - 1)), 0, sent))
        self.check_data(step, ids, first, last, obs)
        self.kind[ids] = kind

    def check_data(self, step, ids, first, last, obs):
        same(obs[:, SEED], 10 + ids)
        same(obs[:, COUNT], self.count[ids] + 1)
        same(obs[:, ECHO], np.where(first, -1, self.sent[ids]))
        same(step.reward, obs[:, STEP])
        same(first, obs[:, STEP] == 0)
        true_end = last & (obs[:, STEP] % 2 == 0)
        same(step.discount, np.where(true_end, 0, 1))
        self.count[ids] = obs[:, COUNT]

    def actions(self, ids):
        self.turn += 1
        action = (self.turn * NUM_ENVS + ids).astype(np.int32)
        self.sent[ids] = action
        return action


class Swinging(Counted):
    """Follows EnvPool's Pendulum-v1: its angular speed says which torque reached it."""

    def __init__(self):
        super().__init__()
        self.sent = np.zeros((NUM_ENVS, 1), np.float32)
        self.length = np.zeros(NUM_ENVS, int)
        self.obs = np.zeros((NUM_ENVS, 3), np.float32)
        self.random = np.random.default_rng(1)

    def check_data(self, step, ids, first, last, obs):
        self.length[ids] = np.where(first, 0, self.length[ids] + 1)
        same(last, self.length[ids] == EPISODE)
        assert (step.discount == 1).all()
        assert not step.reward[first].any()
        before = self.obs[ids]
        speed = before[:, 2] + 0.05 * (15 * before[:, 1] + 3 * self.sent[ids, 0])
        expected = np.clip(speed, -8, 8)[~first]
        assert np.abs(obs[~first, 2] - expected).max(initial=0) < 1e-4
        self.obs[ids] = obs

    def actions(self, ids):
        action = self.random.uniform(-2, 2, (len(ids), 1)).astype(np.float32)
        self.sent[ids] = action
        return action


def play(pool, follower, steps):
    """Steps environments `steps` times in all, checking everything; returns the last step."""
    try:
        pool.start()
        done = 0
        while True:
            step = pool.recv()
            follower.check(step)
            assert step.step_type.dtype == np.int8
            assert step.reward.dtype == step.discount.dtype == np.float32
            done += pool.wait_num
            if done >= steps:
                return step
            pool.send(follower.actions(step.env_id), step.env_id)
    finally:
        pool.close()


def follower_of(kind):
    return Swinging() if kind == "envpool" else Counted()


@pytest.mark.parametrize("wait_num", WAIT_NUMS)
@pytest.mark.parametrize("kind", POOLS)
def test_every_action_reaches_its_environment_and_every_boundary_is_exact(kind, wait_num):
    play(make(kind, wait_num), follower_of(kind), steps=20_000 if wait_num > 1 else 5_000)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", POOLS)
def test_a_million_asynchronous_steps(kind):
    play(make(kind, wait_num=5), follower_of(kind), steps=1_000_000)


@pytest.mark.parametrize("num_workers", [1, 3, 16])
@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_any_number_of_workers(kind, num_workers):
    play(make(kind, 5, num_workers=num_workers), Counted(), steps=2_000)
    play(make(kind, NUM_ENVS, num_workers=num_workers), Counted(), steps=2_000)


@pytest.mark.parametrize("kind", POOLS)
def test_sync_reset_and_step_give_all_in_order(kind):
    pool, follower = make(kind, NUM_ENVS), follower_of(kind)
    step = pool.reset()
    for _ in range(30):
        np.testing.assert_array_equal(step.env_id, np.arange(NUM_ENVS))
        follower.check(step)
        step = pool.step(follower.actions(step.env_id))
    pool.close()


@pytest.mark.parametrize("kind", POOLS)
def test_a_synchronous_pool_takes_actions_in_any_order(kind):
    pool, follower = make(kind, NUM_ENVS), follower_of(kind)
    order, parts = np.arange(NUM_ENVS, dtype=np.int32)[::-1], 1 if kind == "envpool" else 2
    follower.check(pool.reset())
    for _ in range(2 * EPISODE):
        for ids in np.array_split(order, parts):
            pool.send(follower.actions(ids), ids)
        follower.check(pool.recv())
    pool.close()


@pytest.mark.parametrize("kind", POOLS)
def test_recv_with_too_little_in_flight_raises(kind):
    pool = make(kind, wait_num=8)
    pool.start()
    ids = [pool.recv().env_id for _ in range(2)]
    np.testing.assert_array_equal(np.sort(np.concatenate(ids)), np.arange(NUM_ENVS))
    with pytest.raises(RuntimeError, match="only 0 are in flight"):
        pool.recv()
    pool.close()


@pytest.mark.parametrize("kind", POOLS)
def test_sync_methods_of_an_async_pool_raise(kind):
    pool = make(kind, wait_num=8)
    with pytest.raises(RuntimeError, match="synchronous"):
        pool.reset()
    pool.close()


@pytest.mark.parametrize("wait_num", [NUM_ENVS, 8])
@pytest.mark.parametrize("kind", PYTHON)
def test_what_recv_gives_stays_as_it_was(kind, wait_num):
    pool, follower = make(kind, wait_num), Counted()
    pool.start()
    kept, copies = [], []
    for _ in range(6):
        step = pool.recv()
        kept.append(step)
        copies.append([np.array(x) for x in step[:4]])
        pool.send(follower.actions(step.env_id), step.env_id)
    pool.recv()
    for step, copy in zip(kept, copies, strict=True):
        for now, then in zip(step[:4], copy, strict=True):
            np.testing.assert_array_equal(now, then)
    pool.close()


@pytest.mark.parametrize("kind", POOLS)
def test_an_action_that_breaks_its_spec_is_refused(kind):
    pool = make(kind, NUM_ENVS)
    pool.reset()
    with pytest.raises(SpecError, match=r"action of .*: expected (int|float)32.*, got uint8"):
        pool.step(np.zeros(NUM_ENVS, np.uint8))
    pool.close()


class Choices(gymnasium.Env):
    """Takes a choice, the first of which is 3, and three bounded numbers."""

    observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Dict(
        choice=gymnasium.spaces.Discrete(2, start=3),
        numbers=gymnasium.spaces.MultiDiscrete([4, 1, 3]),
    )

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), 0.0, False, False, {}


@pytest.mark.parametrize("kind", PYTHON)
@pytest.mark.parametrize(
    ("part", "wrong", "message"),
    [
        ("choice", 2, "from 3 to 4, got 5"),
        ("choice", -1, "from 3 to 4, got 2"),
        ("numbers", (0, 1, 0), "from 0 to 0, got 1"),
        ("numbers", (-1, 0, 0), "from 0 to 3, got -1"),
    ],
)
def test_an_action_that_does_not_exist_is_refused(kind, part, wrong, message):
    pool = make(kind, 8, lambda seed: Choices())
    pool.start()
    step = pool.recv()
    action = {"choice": np.ones(8, np.int32), "numbers": np.zeros((8, 3), np.int32)}
    pool.send(action, step.env_id)
    step = pool.recv()
    action[part][5] = wrong
    where = rf"^action\['{part}'\] of .*: environment {step.env_id[5]}: .*{message}$"
    with pytest.raises(SpecError, match=where):
        pool.send(action, step.env_id)
    pool.close()


@pytest.mark.parametrize("wait_num", [4, 2])
@pytest.mark.parametrize("wrong", [2, -1])
def test_envpool_gets_no_action_that_does_not_exist(wait_num, wrong):
    """It would take it for one that does, or read beyond its table of actions."""
    pool = NativeEnvironment("CartPole-v1").make_pool(4, wait_num, range(4))
    pool.start()
    step = pool.recv()
    action = np.ones(wait_num, np.int32)
    action[1] = wrong
    message = rf"environment {step.env_id[1]}: expected whole numbers from 0 to 1, got {wrong}$"
    with pytest.raises(SpecError, match=message):
        pool.send(action, step.env_id)
    pool.close()


@pytest.mark.parametrize("kind", PYTHON)
def test_an_environment_in_flight_takes_no_second_action(kind):
    pool = make(kind, wait_num=8)
    pool.start()
    with pytest.raises(RuntimeError, match=r"in flight; recv\(\) them first"):
        pool.send(np.zeros(1, np.int32), np.array([3], np.int32))
    pool.close()


@pytest.mark.parametrize("kind", PYTHON)
def test_a_closed_pool_says_so(kind):
    pool = make(kind, wait_num=8)
    pool.start()
    pool.close()
    pool.close()
    with pytest.raises(RuntimeError, match="closed"):
        pool.recv()
