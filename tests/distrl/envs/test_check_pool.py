"""A pool of one's own is checked: by a helper for tests, and where its first steps arrive."""

import numpy as np
import pytest
from dm_env import specs as dm_specs

from distrl.envs import MultiAgentEnvironment, NativeEnvironment, Pool, PythonEnvironment
from distrl.envs.pool_config import PoolConfig
from distrl.errors import SpecError
from distrl.specs import EnvironmentSpec
from distrl.testing import CountingAgents, CountingEnvironment, check_pool
from distrl.types import StepType

SPEC = EnvironmentSpec(
    {
        "count": dm_specs.Array((2,), np.float32, "count"),
        "parity": dm_specs.DiscreteArray(2, np.int32, "parity"),
        "action_mask": dm_specs.BoundedArray((3,), np.int8, 0, 1, "action_mask"),
    },
    dm_specs.DiscreteArray(3, np.int32, "action"),
    dm_specs.Array((2,), np.float32, "reward"),
    {"half": dm_specs.Array((), np.int32, "half")},
)
LENGTH = 5  # steps of an episode; of environment 0 a true end, of others a time limit


class OwnPool(Pool):
    """Counts steps; only the action `count % 3` is legal. `change` alters what it returns."""

    def __init__(self, num_envs, wait_num, change=None):
        super().__init__("own", SPEC, num_envs, wait_num)
        self.change = change or (lambda step: None)
        self.ready = []
        self.count = np.full(num_envs, LENGTH)

    def _start(self):
        self._advance(self.env_ids)

    def _send(self, action, env_ids):
        assert (action == self.count[env_ids] % 3).all()
        self._advance(env_ids)

    def _advance(self, env_ids):
        self.count[env_ids] = (self.count[env_ids] + 1) % (LENGTH + 1)
        self.ready += env_ids.tolist()

    def _recv(self):
        ids = np.array(self.ready[: self.wait_num], np.int32)
        del self.ready[: self.wait_num]
        count = self.count[ids]
        kind = np.where(count == 0, StepType.FIRST, np.where(count == LENGTH, 2, 1))
        self.made = {
            "step_type": kind.astype(np.int8),
            "reward": np.stack([count, 0 * count], 1).astype(np.float32),
            "discount": np.where((count == LENGTH) & (ids == 0), 0, 1).astype(np.float32),
            "observation": {
                "count": np.stack([count, count], 1).astype(np.float32),
                "parity": (count % 2).astype(np.int32),
                "action_mask": np.eye(3, dtype=np.int8)[count % 3],
            },
            "env_id": ids,
            "env_info": {"half": (count // 2).astype(np.int32)},
        }
        self.change(self)
        return tuple(self.made.values())

    def close(self):
        self.closed = True


def put(name, value, at=None, part=None):
    """Returns a change: `value(old)` for a part of the step, where its count is `at`."""

    def change(pool):
        step = pool.made if part is None else pool.made[part]
        old, new = step[name], value(step[name])
        where = pool.count[pool.made["env_id"]] == at
        if at is not None:
            new = np.where(where.reshape(-1, *[1] * (old.ndim - 1)), new, old).astype(old.dtype)
        step[name] = new

    return change


def reuses(name):
    def change(pool):
        buffer = pool.__dict__.setdefault("buffer", pool.made[name])
        buffer[:] = pool.made[name]
        pool.made[name] = buffer

    return change


def both(*changes):
    return lambda pool: [change(pool) for change in changes]


def later(change, calls):
    """Returns a change that begins after some calls, when an actor's own checks are over."""
    done = []

    def delayed(pool):
        done.append(None)
        if len(done) > calls:
            change(pool)

    return delayed


FIRST_RECV = {
    "a row of rewards": (
        put("reward", lambda x: x[:, :1]),
        r"reward of own: expected float32\[4, 2\], got float32\[4, 1\]",
    ),
    "float64": (put("discount", lambda x: x.astype(np.float64)), "discount of own: .*got float64"),
    "int64": (put("step_type", lambda x: x.astype(np.int64)), "step_type of own: .*got int64"),
    "observation": (
        put("count", lambda x: x[0], part="observation"),
        r"observation of own\['count'\]: expected float32\[4, 2\], got float32\[2\]",
    ),
    "structure": (put("observation", lambda x: x["count"]), "observation of own: .*structure"),
    "env_info": (put("env_info", lambda x: ()), "env_info of own: expected the structure"),
    "env ids": (
        put("env_id", lambda x: x[::-1].copy()),
        r"env_id of own: expected the numbers in order from 0 to 3, got \[3 2 1 0\]",
    ),
    "first reward": (
        put("reward", lambda x: x + 1),
        r"own: the first step .* must be FIRST \(0\), .* 0 begins .* reward \[1\. 1\.\] and",
    ),
    "no first": (put("step_type", np.ones_like), "environment 0 begins with step type 1, reward"),
    "a list": (
        lambda pool: pool.made.pop("env_info"),
        r"own: _recv must return a tuple \(step_type, reward, discount, observation, env_id, env_i",
    ),
}
REUSED = {
    name: (reuses(name), f"{name} of own: the array that recv returned changed when the next step")
    for name in ("step_type", "reward")
}
LATER = {
    "mid after last": (
        later(put("step_type", np.ones_like, at=0), 2),
        r"own: environment 0, step type 1 \(MID\): expected FIRST .* it came after LAST",
    ),
    "no last": (
        both(put("step_type", np.ones_like, at=LENGTH), put("discount", np.ones_like)),
        r"step type 0 \(FIRST\): expected FIRST after LAST, .* and only there; it came after MID",
    ),
    "a discount of the environment": (
        put("discount", lambda x: x / 2, at=2),
        r"environment 0, step type 1 \(MID\): expected a discount of 1, or 0 at LAST .*, got 0\.5",
    ),
    "an end at MID": (put("discount", lambda x: 0 * x, at=2), r"\(MID\): expected a discount of 1"),
    "reward at FIRST": (
        later(put("reward", lambda x: x + np.array([0, 1]), at=0), 2),
        r"step type 0 \(FIRST\): expected reward 0, got \[0\. 1\.\]",
    ),
    "nan": (put("count", lambda x: x * np.nan, 3, "observation"), "expected a finite observation"),
    "infinite": (put("reward", lambda x: x + np.inf, at=3), "expected a finite reward"),
    "a choice": (put("parity", lambda x: x + 2, 3, "observation"), "whole numbers from 0 to 1"),
    "a step type": (put("step_type", lambda x: x + 5, at=2), "expected 0, 1 or 2, got 6"),
    "dtype": (later(put("discount", lambda x: x.astype(np.float64)), 9), "discount of own: exp"),
    "reused late": (later(reuses("discount"), 4), "discount of own: the array that recv returned"),
}


@pytest.mark.parametrize("wait_num", [4, 3, 1])
def test_a_right_pool_passes(wait_num):
    check_pool(lambda n, wait, seeds: OwnPool(n, wait), wait_num=wait_num, steps=100)


@pytest.mark.parametrize("case", [*FIRST_RECV, *REUSED, *LATER])
def test_what_is_wrong_is_told(case):
    change, message = {**FIRST_RECV, **REUSED, **LATER}[case]
    pools = []

    def make(num_envs, wait_num, seeds):
        pools.append(OwnPool(num_envs, wait_num, change))
        return pools[0]

    with pytest.raises(SpecError, match=message) as error:
        check_pool(make, steps=100)
    assert "\n" not in str(error.value)
    assert pools[0].closed


def test_the_same_environment_twice_in_one_recv():
    with pytest.raises(SpecError, match="env_id of own: expected different numbers from 0 to 3, "):
        check_pool(
            lambda n, wait, seeds: OwnPool(n, wait, put("env_id", lambda x: 0 * x)), wait_num=2
        )


def test_episodes_that_do_not_end():
    endless = put("step_type", lambda x: np.minimum(x, 1))
    with pytest.raises(SpecError, match=r"own: no episode ended in 4 steps: .* check more steps"):
        check_pool(lambda n, wait, seeds: OwnPool(n, wait, endless), steps=4)


@pytest.mark.parametrize("case", FIRST_RECV)
def test_the_first_steps_are_checked_in_every_run(case):
    change, message = FIRST_RECV[case]
    with pytest.raises(SpecError, match=message):
        OwnPool(4, 4, change).reset()


def test_buffers_that_are_used_again_are_found_with_the_second_step():
    pool = OwnPool(4, 4, reuses("reward"))
    pool.reset()
    with pytest.raises(SpecError, match="_recv must return new arrays, or copies"):
        pool.step(np.zeros(4, np.int32))


@pytest.mark.parametrize("wait_num", [None, 3])
@pytest.mark.parametrize("kind", ["loop", "threads", "processes"])
def test_pools_of_python_environments_pass(kind, wait_num):
    environment = PythonEnvironment(CountingEnvironment, pool=PoolConfig(kind=kind, num_workers=2))
    check_pool(environment, wait_num=wait_num, steps=60)


@pytest.mark.parametrize("wait_num", [None, 2])
@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "CartpoleSwingup-v1"])
def test_envpools_pools_pass(name, wait_num):
    environment = NativeEnvironment(name, max_episode_steps=20)
    check_pool(environment, wait_num=wait_num, steps=100)


def test_pools_of_joint_steps_pass():
    check_pool(MultiAgentEnvironment(CountingAgents), steps=60)
