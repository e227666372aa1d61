"""EnvPool's pools: time limits and true ends, clipped actions, refusals. See test_pool_contract."""

import types

import numpy as np
import pytest
from dm_env import specs as dm_specs

from distrl import envs, specs
from distrl.envs import NativeEnvironment, native
from distrl.envs.pools import native_pool
from distrl.envs.pools.envpool_library import envpool_names
from distrl.errors import ConfigError, EnvironmentFault, SpecError
from distrl.types import StepType


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
        np.testing.assert_array_equal(last, fallen | (length == 9))
        np.testing.assert_array_equal(step.discount, np.where(fallen, 0, 1))
        seen |= set(zip((length == 9).tolist(), fallen.tolist()))
    assert seen == {(False, False), (False, True), (True, False), (True, True)}


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


def test_a_library_that_envpool_lacks_is_named_in_one_line(monkeypatch):
    def lacks(name, options):
        raise ImportError("Procgen requires Qt\nlibQt5Gui.so.5: cannot open")

    monkeypatch.setattr(native, "envpool_spec", lacks)
    with pytest.raises(ConfigError) as error:
        NativeEnvironment("CartPole-v1")
    assert str(error.value).endswith("EnvPool cannot make CartPole-v1: Procgen requires Qt")


def test_games_of_several_players_are_refused():
    message = "CartPole-v1 is for several players; distrl takes environments of one"
    with pytest.raises(ConfigError, match=message):
        NativeEnvironment("CartPole-v1", options=(("max_num_players", 2),))


def test_an_environment_that_envpool_cannot_start_is_named_in_one_line(monkeypatch):
    """As EnvPool 0.8's MultiDuel-v1, whose spec can be made."""

    def make(name, **options):
        raise RuntimeError("No player 1 start\n")

    monkeypatch.setattr(native_pool, "envpool", lambda: types.SimpleNamespace(make=make))
    with pytest.raises(ConfigError) as error:
        NativeEnvironment("CartPole-v1").make_pool(2, 2, [5])
    assert str(error.value) == "environment: EnvPool cannot make CartPole-v1: No player 1 start"


def test_envpool_refuses_actions_of_another_type():
    pool = NativeEnvironment("CartPole-v1").make_pool(
        num_envs=2, wait_num=2, seeds=range(5, 5 + 64)
    )
    pool.reset()
    with pytest.raises(SpecError, match=r"action of CartPole-v1: expected int32\[2\], got float32"):
        pool.step(np.zeros(2, np.float32))


@pytest.mark.skipif("RubiksCube-v0" not in envpool_names(), reason="EnvPool is older than 1.2")
def test_actions_of_several_integers():
    """A turn of a face and then the opposite one restore the cube: each part means what it says."""
    environment = NativeEnvironment("RubiksCube-v0")
    spec = environment.spec()
    assert specs.num_values(spec.action) == [6, 1, 3]
    assert specs.num_values(spec.observation["cube"]) == [6] * 54
    count = spec.observation["step_count"]  # a quantity, not a choice among 201
    assert not isinstance(count, dm_specs.DiscreteArray) and specs.num_values(count) == [201]
    pool = environment.make_pool(3, 3, range(3))
    first = pool.reset().observation["cube"]
    turned = pool.step(np.array([[2, 0, 0], [2, 0, 0], [5, 0, 2]], np.int32)).observation["cube"]
    back = pool.step(np.array([[2, 0, 1], [2, 0, 0], [5, 0, 2]], np.int32)).observation["cube"]
    pool.close()
    assert (turned != first).any(axis=(1, 2, 3)).all()
    np.testing.assert_array_equal(back[0], first[0])
    assert (back[1] != first[1]).any()
    np.testing.assert_array_equal(back[2], first[2])  # two half turns


@pytest.mark.skipif("Mjlab-Cartpole-Balance-v0" not in envpool_names(), reason="EnvPool is older")
def test_actions_without_bounds_have_none():
    """EnvPool declares infinite ones; agents that need bounds say so, the others take it."""
    action = NativeEnvironment("Mjlab-Cartpole-Balance-v0").spec().action
    assert type(action) is dm_specs.Array and action.dtype == np.float32


def test_few_values_are_discrete_and_bounds_are_kept():
    cards = NativeEnvironment("Blackjack-v1").spec().observation
    assert cards.shape == (3,) and specs.num_values(cards) == [32] * 3
    assert type(NativeEnvironment("CartPole-v1").spec().observation) is dm_specs.Array


def test_wrong_names_have_near_matches():
    with pytest.raises(ConfigError, match=r"did you mean .*CartPole-v1"):
        NativeEnvironment("CartPol-v1")


@pytest.mark.parametrize("kind", ["Pixels", "Symbolic"])
def test_environments_that_reset_themselves_are_refused_and_not_proposed(kind):
    if f"Craftax-{kind}-AutoReset-v1" not in envpool_names():
        pytest.skip("EnvPool is older than 1.2")
    for make in (NativeEnvironment, envs.make):
        with pytest.raises(ConfigError, match=rf"no first steps; use Craftax-{kind}-v1$"):
            make(f"Craftax-{kind}-AutoReset-v1")
        with pytest.raises(ConfigError, match=rf"did you mean Craftax-{kind}-v1 or ") as wrong:
            make(f"Craftax-{kind}-AutoRese-v1")
        assert "-AutoReset-" not in str(wrong.value)
    assert NativeEnvironment(f"Craftax-{kind}-v1").spec().action.num_values > 1


class Faulty:
    """In the place of EnvPool's own pool: changes one element of its states."""

    def __init__(self, env, key, row, value):
        self._env, self._at = env, env.spec._state_keys.index(key)
        self._row, self._value = row, value

    def __getattr__(self, name):
        return getattr(self._env, name)

    def _recv(self):
        state = [np.array(array) for array in self._env._recv()]
        state[self._at][self._row] = self._value
        return state


@pytest.mark.skipif(
    "DmcCmuHumanoidGoToTarget-v1" not in envpool_names(), reason="EnvPool is older than 1.2"
)
def test_observations_of_64_bits_are_cast_as_the_spec_says():
    environment = NativeEnvironment("DmcCmuHumanoidGoToTarget-v1")
    spec = environment.spec()
    pool = environment.make_pool(2, 2, [5])
    step = pool.reset()
    specs.check(step.observation, spec.observation, (2,), "observation")
    pool._env = Faulty(pool._env, "obs:discrete", 1, -7)
    step = pool.step(np.zeros((2, *spec.action.shape), np.float32))
    specs.check(step.observation, spec.observation, (2,), "observation")
    assert step.observation["discrete"].dtype == np.int32
    assert step.observation["discrete"].tolist() == [[0], [-7]]
    raw = environment.envpool_spec().state_array_spec
    assert raw["obs:discrete"].dtype == np.int64  # else this tests nothing
    pool.close()


@pytest.mark.parametrize(
    "key, value, what",
    [
        ("obs", [0, np.nan, 0, np.inf], "observation: expected finite .* 2 of 4 .* first is nan"),
        ("obs", [0, 3e30, 0, 0], None),  # of which the square is infinite
        ("reward", -np.inf, "reward: expected finite numbers, .*; the first is -inf"),
    ],
)
def test_numbers_that_are_not_finite(key, value, what):
    for checked in (True, False):
        pool = NativeEnvironment("CartPole-v1", check_finite=checked).make_pool(3, 3, [5])
        pool.reset()
        pool._env = Faulty(pool._env, key, 1, value)
        if checked and what is not None:
            where = r"CartPole-v1: environment 1 \(seed 6, step 1 of its episode\): "
            for again in range(2):
                with pytest.raises(EnvironmentFault, match=where + what):
                    pool.recv() if again else pool.step(np.zeros(3, np.int32))
        else:
            step = pool.step(np.zeros(3, np.int32))
            found = step.reward if key == "reward" else step.observation
            np.testing.assert_array_equal(found[1], np.array(value, np.float32))
        pool.close()
