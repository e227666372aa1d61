"""Pools: the boundary table, which action reaches which environment, refusals."""

import dm_env
import numpy as np
import pytest

from distrl.envs import NativeEnvironment, PythonEnvironment
from distrl.errors import ConfigError, SpecError
from distrl.testing import COUNT, ECHO, SEED, STEP, CountingEnvironment
from distrl.types import StepType

COUNTING = PythonEnvironment(CountingEnvironment, "counting")


@pytest.mark.parametrize("wait_num", [6, 4, 1])
def test_python_pool_steps_every_environment_exactly(wait_num):
    pool = COUNTING.make_pool(num_envs=6, wait_num=wait_num, seeds=range(10, 10 + 64))
    pool.start()
    sent = np.full(6, -1.0)
    counts = np.full(6, -1.0)
    kinds = np.full(6, StepType.LAST)
    for turn in range(600):
        step = pool.recv()
        ids = step.env_id
        assert len(set(ids.tolist())) == wait_num
        obs = step.observation
        np.testing.assert_array_equal(obs[:, SEED], 10 + ids)
        np.testing.assert_array_equal(obs[:, COUNT], counts[ids] + 1)
        first, last = step.step_type == StepType.FIRST, step.step_type == StepType.LAST
        np.testing.assert_array_equal(first, kinds[ids] == StepType.LAST)
        np.testing.assert_array_equal(obs[:, ECHO], np.where(first, -1, sent[ids]))
        np.testing.assert_array_equal(step.prev_action, np.where(first, 0, sent[ids]))
        true_end = last & (obs[:, STEP] % 2 == 0)
        np.testing.assert_array_equal(step.discount, np.where(true_end, 0, 1))
        np.testing.assert_array_equal(step.reward, obs[:, STEP])
        counts[ids], kinds[ids] = obs[:, COUNT], step.step_type
        action = (turn * 10 + ids).astype(np.int32)
        sent[ids] = action
        pool.send(action, ids)


def test_recv_with_too_little_in_flight_raises():
    pool = COUNTING.make_pool(num_envs=4, wait_num=2, seeds=range(64))
    pool.start()
    pool.recv()
    pool.recv()
    with pytest.raises(RuntimeError, match="only 0 are in flight"):
        pool.recv()


def test_sync_methods_of_an_async_pool_raise():
    pool = COUNTING.make_pool(num_envs=4, wait_num=2, seeds=range(64))
    with pytest.raises(RuntimeError, match="synchronous"):
        pool.reset()


@pytest.mark.parametrize("wait_num", [4, 2])
def test_envpool_time_limit_keeps_its_discount(wait_num):
    """Pendulum only ever ends by its time limit; EnvPool's own dm API gives it discount 0."""
    env = NativeEnvironment("Pendulum-v1", max_episode_steps=5)
    pool = env.make_pool(num_envs=4, wait_num=wait_num, seeds=range(1, 1 + 64))
    pool.start()
    kinds = {i: [] for i in range(4)}
    for _ in range(40):
        step = pool.recv()
        np.testing.assert_array_equal(step.discount, 1.0)
        assert step.observation.dtype == np.float32
        for i, kind, reward, action in zip(
            step.env_id, step.step_type, step.reward, step.prev_action, strict=True
        ):
            kinds[int(i)].append(int(kind))
            assert (reward == 0 and action == 0) or kind != StepType.FIRST
        pool.send(np.full((wait_num, 1), 0.5, np.float32), step.env_id)
    for own in kinds.values():
        assert own[:7] == [0, 1, 1, 1, 1, 2, 0]
    pool.close()


def test_envpool_true_end_and_time_limit_are_told_apart():
    env = NativeEnvironment("CartPole-v1", max_episode_steps=9)
    pool = env.make_pool(num_envs=32, wait_num=32, seeds=range(3, 3 + 64))
    step = pool.reset()
    length = np.zeros(32, int)
    seen = set()
    for _ in range(200):
        step = pool.step(np.ones(32, np.int32))  # always to one side: falls after 8 to 10 steps
        length = np.where(step.step_type == StepType.FIRST, 0, length + 1)
        last = step.step_type == StepType.LAST
        fallen = np.abs(step.observation[:, 2]) > 0.2095
        assert not (step.step_type[fallen] == StepType.MID).any()
        limit = last & (length == 9)
        np.testing.assert_array_equal(step.discount[last & ~limit], 0)
        np.testing.assert_array_equal(step.discount[limit], 1)
        np.testing.assert_array_equal(step.discount[~last], 1)
        seen |= {bool(x) for x in limit[last]}
    assert seen == {True, False}


def test_envpool_clips_continuous_actions():
    pools = [
        NativeEnvironment("Pendulum-v1").make_pool(num_envs=2, wait_num=2, seeds=range(5, 5 + 64))
        for _ in "ab"
    ]
    for pool in pools:
        pool.reset()
    far = pools[0].step(np.full((2, 1), 100.0, np.float32))
    bound = pools[1].step(np.full((2, 1), 2.0, np.float32))
    np.testing.assert_array_equal(far.observation, bound.observation)


def test_envpool_refuses_actions_of_another_type():
    pool = NativeEnvironment("CartPole-v1").make_pool(
        num_envs=2, wait_num=2, seeds=range(5, 5 + 64)
    )
    pool.reset()
    with pytest.raises(SpecError, match=r"action of CartPole-v1: expected int32\[2\], got float32"):
        pool.step(np.zeros(2, np.float32))


def test_wrong_names_have_near_matches():
    with pytest.raises(ConfigError, match=r"did you mean .*CartPole-v1"):
        NativeEnvironment("CartPol-v1")


class Broken(CountingEnvironment):
    def step(self, action):
        return super().step(action)._replace(observation=np.zeros(3, np.float32))


def test_an_observation_that_breaks_its_spec_is_named():
    pool = PythonEnvironment(Broken).make_pool(num_envs=2, wait_num=2, seeds=range(64))
    pool.reset()
    with pytest.raises(
        SpecError,
        match=r"observation of environment 0 of Broken: expected float32\[4\], got float32\[3\]",
    ):
        pool.step(np.zeros(2, np.int32))


class Vague(CountingEnvironment):
    def step(self, action):
        return dm_env.TimeStep(StepType.MID, 1.0, 0.5, self._observe(0))


def test_a_discount_that_is_neither_0_nor_1_is_refused():
    pool = PythonEnvironment(Vague).make_pool(num_envs=1, wait_num=1, seeds=range(64))
    pool.reset()
    with pytest.raises(SpecError, match=r"expected 0 or 1, got 0\.5"):
        pool.step(np.zeros(1, np.int32))
