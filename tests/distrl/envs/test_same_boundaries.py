"""EnvPool's and gymnasium's environments through our pools: the same boundaries and trajectories.

gymnasium's side runs in a loop pool. Its environments are put into EnvPool's state where they can
be, after every reset; both sides then take the same actions.
"""

import numpy as np
import pytest

from distrl.envs import NativeEnvironment, PythonEnvironment, WrapperConfig, make
from distrl.envs.pools.envpool_library import envpool_names
from distrl.types import StepType

FIRST, MID, LAST = StepType.FIRST, StepType.MID, StepType.LAST

# Family, limit to set, and whether episodes also end truly under random actions. The limit is
# where such an end is likely, so that both fall on one step now and then.
NAMES = [
    ("CartPole-v1", 14, True),
    ("Pendulum-v1", 9, False),
    ("Acrobot-v1", 9, False),
    ("MountainCar-v0", 9, False),
    ("LunarLander-v2", 72, True),
    ("HalfCheetah-v4", 9, False),
    ("Hopper-v4", 18, True),
    ("Walker2d-v4", 18, True),
    ("InvertedPendulum-v4", 6, True),
    ("CartpoleSwingup-v1", 9, False),
    ("FrozenLake-v1", 7, True),
    ("Pong-v5", 9, False),
]


def actions(pool, rng, rows):
    spec = pool.spec.action
    if np.issubdtype(spec.dtype, np.integer):
        return rng.integers(0, spec.num_values, rows).astype(spec.dtype)
    return rng.uniform(-1, 1, (rows, *spec.shape)).astype(spec.dtype)


@pytest.mark.parametrize("wait_num", [8, 5], ids=["sync", "async"])
@pytest.mark.parametrize("name, limit, ends", NAMES, ids=[n for n, *_ in NAMES])
def test_limit_and_true_end_on_one_step(name, limit, ends, wait_num):
    """No episode is longer than the limit; what ends sooner, or falls on it, ends truly."""
    num_envs, episodes = 8, 12 if ends else 3
    if name.startswith(("Lunar", "Hopper", "Walker")):
        episodes = 6
    near = NativeEnvironment(name, max_episode_steps=limit)
    assert near.exact_limit == limit
    pool = near.make_pool(num_envs, wait_num, range(1, num_envs + 1))
    pool.start()
    length, kinds = np.zeros(num_envs, int), np.full(num_envs, LAST)
    rng = np.random.default_rng(4)
    seen = {"limit": 0, "end": 0, "restarts": 0}
    for _ in range(episodes * (limit + 1) * num_envs // wait_num):
        step = pool.recv()
        ids = step.env_id
        first, last = step.step_type == FIRST, step.step_type == LAST
        np.testing.assert_array_equal(first, kinds[ids] == LAST)
        length[ids] = np.where(first, 0, length[ids] + 1)
        assert length.max() <= limit
        np.testing.assert_array_equal(last[length[ids] == limit], True)
        np.testing.assert_array_equal(step.discount[~last], 1.0)
        np.testing.assert_array_equal(step.reward[first], 0.0)
        np.testing.assert_array_equal(step.discount[last & (length[ids] < limit)], 0.0)
        at_limit = last & (length[ids] == limit)
        seen["limit"] += int((step.discount[at_limit] == 1).sum())
        seen["end"] += int((step.discount[at_limit] == 0).sum())
        seen["restarts"] += int(first.sum())
        kinds[ids] = step.step_type
        if name == "CartPole-v1":
            fallen = np.abs(step.observation[:, 2]) > 0.20943951
            fallen |= np.abs(step.observation[:, 0]) > 2.4
            np.testing.assert_array_equal(step.discount, np.where(fallen, 0, 1))
        if name == "InvertedPendulum-v4":
            fallen = np.abs(step.observation[:, 1]) > 0.2
            np.testing.assert_array_equal(step.discount, np.where(fallen & ~first, 0, 1))
        if not ends:
            np.testing.assert_array_equal(step.discount, 1.0)
        pool.send(actions(pool, rng, wait_num), ids)
    pool.close()
    assert seen["limit"] and seen["restarts"] > num_envs
    if name in ("CartPole-v1", "InvertedPendulum-v4", "FrozenLake-v1"):
        assert seen["end"]  # both on one step was met


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "Pong-v5", "CartpoleSwingup-v1"])
def test_a_cut_changes_nothing_else(name):
    """A sync pool with a limit L, against EnvPool itself with L: all but the true ends at L."""
    from distrl.envs.pools.envpool_library import envpool

    num_envs, limit = 4, 6
    environment = NativeEnvironment(name, max_episode_steps=limit)
    pool = environment.make_pool(num_envs, num_envs, range(3, 3 + num_envs))
    bare = envpool().make(
        name, env_type="gymnasium", num_envs=num_envs, seed=3, max_episode_steps=limit
    )
    rng = np.random.default_rng(1)
    step = pool.reset()
    observation = bare.reset()[0]
    dtype = list(bare.spec.action_array_spec.values())[-1].dtype
    for t in range(30):
        for ours, theirs in zip(_leaves(step.observation), _leaves(observation)):
            np.testing.assert_array_equal(ours, theirs.astype(ours.dtype))
        action = actions(pool, rng, num_envs)
        step = pool.step(action)
        observation, reward, terminated, truncated, _ = bare.step(action.astype(dtype))
        first = step.step_type == FIRST
        np.testing.assert_array_equal(step.step_type == LAST, terminated | truncated)
        np.testing.assert_array_equal(step.reward, np.where(first, 0, reward))
        assert t % (limit + 1) != limit - 1 or (step.step_type == LAST).all()
    pool.close()


@pytest.mark.parametrize("wait_num", [5, 2], ids=["sync", "async"])
def test_many_environments_are_many_pools_of_one(wait_num):
    """Some are cut while others go on: each is bit by bit what it is alone in a pool."""
    environment = NativeEnvironment("CartPole-v1", max_episode_steps=12)

    def act(i, t):
        return np.int32(hash((i, t // 2)) % 2)

    alone = []
    for i in range(5):
        pool = environment.make_pool(1, 1, [11 + i])
        steps = [pool.reset()]
        steps += [pool.step(np.array([act(i, t)])) for t in range(80)]
        alone.append(steps)
        pool.close()
    pool = environment.make_pool(5, wait_num, range(11, 16))
    pool.start()
    count, mixed = np.zeros(5, int), 0
    while count.min() < 60:
        step = pool.recv()
        ids = step.env_id
        for row, i in enumerate(ids):
            if count[i] < 80:
                want = alone[i][count[i]]
                for name in ("step_type", "reward", "discount", "observation", "prev_action"):
                    np.testing.assert_array_equal(
                        getattr(step, name)[row], getattr(want, name)[0], name
                    )
        cut = (step.step_type == LAST) & (step.discount == 1)
        mixed += bool(cut.any() and not cut.all())
        pool.send(np.array([act(i, count[i]) for i in ids]), ids)
        count[ids] += 1
    assert mixed
    pool.close()


@pytest.mark.skipif("TwoWay-v0" not in envpool_names(), reason="this EnvPool has no TwoWay-v0")
def test_an_end_that_envpool_reports_beside_its_time_limit_is_a_termination():
    """A crash ends an episode of TwoWay, now and then in the last step before its limit."""
    environment, num_envs = NativeEnvironment("TwoWay-v0"), 16
    pool = environment.make_pool(num_envs, num_envs, range(num_envs))
    rng, length, both = np.random.default_rng(0), np.zeros(num_envs, int), 0
    step = pool.reset()
    for _ in range(300):
        step = pool.step(actions(pool, rng, num_envs))
        length = np.where(step.step_type == FIRST, 0, length + 1)
        last, crashed = step.step_type == LAST, step.env_info["crashed"]
        np.testing.assert_array_equal(step.discount[last], np.where(crashed[last], 0, 1))
        both += int((last & crashed & (length == environment.episode_limit)).sum())
    assert both
    pool.close()


def _leaves(observation):
    return list(observation.values()) if isinstance(observation, dict) else [observation]


class _Follower:
    """gymnasium's environments in a loop pool, set to EnvPool's states where they begin."""

    def __init__(self, name, num_envs, limit, set_state):
        self.envs = []
        base = make(f"gym:{name}")

        def build():
            self.envs.append(base.builder())
            return self.envs[-1]

        environment = PythonEnvironment(build, name, WrapperConfig(max_episode_steps=limit))
        environment.spec()
        self.envs.clear()
        self.pool = environment.make_pool(num_envs, num_envs, range(num_envs))
        self._set_state = set_state

    def put(self, rows, observation):
        for row in rows:
            self._set_state(self.envs[row].unwrapped, observation[row].astype(np.float64))


def _cartpole(env, observation):
    env.state = tuple(observation)


def _pendulum(env, observation):
    cos, sin, speed = observation
    env.state = np.array([np.arctan2(sin, cos), speed])


def _cheetah(env, observation):
    env.set_state(np.concatenate([[0.0], observation[:8]]), observation[8:])


@pytest.mark.parametrize(
    "name, limit, set_state, tolerance, length",
    [
        ("CartPole-v1", 25, _cartpole, 1e-5, 25),
        ("CartPole-v1", 9, _cartpole, 1e-5, 9),  # falls on the step of the limit, too
        ("Pendulum-v1", 40, _pendulum, 1e-4, 40),
        ("HalfCheetah-v4", 12, _cheetah, 1e-3, 12),  # other versions of MuJoCo; a chaotic body
    ],
)
def test_gymnasium_and_envpool_agree(name, limit, set_state, tolerance, length):
    """Boundaries and discounts at every step; trajectories over an episode's first `length`."""
    pytest.importorskip("gymnasium")
    if name.startswith("HalfCheetah"):
        pytest.importorskip("mujoco")
        pytest.importorskip("imageio")  # gymnasium's MuJoCo imports it
    num_envs, rng = 6, np.random.default_rng(2)
    native = NativeEnvironment(name, max_episode_steps=limit).make_pool(
        num_envs, num_envs, range(7, 7 + num_envs)
    )
    follower = _Follower(name, num_envs, limit, set_state)
    step, other = native.reset(), follower.pool.reset()
    follower.put(range(num_envs), step.observation)
    since = np.zeros(num_envs, int)
    ends, cuts, compared = 0, 0, 0
    for _ in range(4 * limit):
        action = actions(native, rng, num_envs)
        if name == "CartPole-v1" and limit == 9:
            action[:] = 1  # always to one side: falls after 8 to 10 steps
        step, other = native.step(action), follower.pool.step(action)
        np.testing.assert_array_equal(step.step_type, other.step_type)
        np.testing.assert_array_equal(step.discount, other.discount)
        np.testing.assert_array_equal(step.prev_action, other.prev_action)
        first = step.step_type == FIRST
        since = np.where(first, 0, since + 1)
        follower.put(np.flatnonzero(first), step.observation)
        rows = ~first & (since <= length)
        np.testing.assert_allclose(
            step.observation[rows], other.observation[rows], rtol=tolerance, atol=tolerance
        )
        np.testing.assert_allclose(
            step.reward[rows], other.reward[rows], rtol=tolerance, atol=tolerance
        )
        compared += int(rows.sum())
        last = step.step_type == LAST
        ends += int((step.discount[last] == 0).sum())
        cuts += int((step.discount[last] == 1).sum())
    assert compared > 20 and ends + cuts >= num_envs
    assert (cuts > 0) and (ends > 0) == name.startswith("CartPole")
    native.close()
    follower.pool.close()


def test_a_synchronous_pool_takes_all_environments_at_once():
    pool = NativeEnvironment("CartPole-v1").make_pool(4, 4, range(4))
    pool.reset()
    with pytest.raises(ValueError, match="all 4 environments"):
        pool.send(np.zeros(2, np.int32), np.arange(2, dtype=np.int32))
    pool.close()


def test_limits_that_are_part_of_the_game_stay_envpools():
    assert NativeEnvironment("D1Basic-v1").exact_limit is None
    assert NativeEnvironment("Pong-v5", options=(("episodic_life", True),)).exact_limit is None
    assert NativeEnvironment("Catch-v0").exact_limit is None  # it has no limit
    assert NativeEnvironment("CartPole-v1").exact_limit == 500
