"""A shorter time limit for an environment's episodes."""

import dataclasses

import numpy as np
import pytest
from dm_env import specs as dm_specs

from distrl import envs, specs
from distrl.envs import (
    Act,
    ControlFlow,
    Copies,
    End,
    MultiAgentEnvironment,
    PythonEnvironment,
    WrapperConfig,
)
from distrl.envs.pools.envpool_library import envpool_names
from distrl.envs.time_limit import with_time_limit
from distrl.errors import ConfigError
from distrl.testing import CountingEnvironment
from distrl.types import StepType


@pytest.mark.parametrize(("own", "limit"), [(None, 9), (5, 5), (20, 9)])
def test_the_shorter_limit_holds(own, limit):
    made = PythonEnvironment(CountingEnvironment, wrappers=WrapperConfig(max_episode_steps=own))
    spec = made.spec()
    limited = with_time_limit(made, 9)
    assert limited.wrappers.max_episode_steps == limit
    assert limited.spec() is spec  # no environment is built for it


@pytest.mark.parametrize(("steps", "limit"), [(9, 9), (1000, 500)])
def test_native_environments(steps, limit):
    assert with_time_limit(envs.make("CartPole-v1"), steps).episode_limit == limit


needs_minigrid = pytest.mark.skipif(
    "BabyAI-GoToLocal-v0" not in envpool_names(), reason="this EnvPool has no MiniGrid"
)


@needs_minigrid
def test_a_limit_that_levels_compute_is_not_known():
    made = envs.NativeEnvironment("BabyAI-GoToLocal-v0")
    assert made.episode_limit is None
    assert dataclasses.replace(made, max_episode_steps=9).episode_limit == 9


def played(environment, actions):
    """Returns length, reward and discount at the ends of two equal environments' episodes."""
    pool = environment.make_pool(2, 2, [3, 4])
    length, ends = 0, []
    step = pool.reset()
    for action in actions:
        step = pool.step(np.full(2, action, np.int32))
        np.testing.assert_array_equal(step.step_type, step.step_type[0])
        length = 0 if step.step_type[0] == StepType.FIRST else length + 1
        if step.step_type[0] == StepType.LAST:
            ends.append((length, round(float(step.reward[1]), 3), float(step.discount[1])))
    pool.close()
    return ends


@needs_minigrid
def test_a_limit_changes_no_reward_of_envpools():
    made = envs.NativeEnvironment("MiniGrid-Empty-5x5-v0")  # its reward is 1 - 0.9 * steps / 100
    right, forward = 1, 2
    solution = [forward, forward, right, forward, forward]
    assert played(with_time_limit(made, 50), solution) == [(5, 0.955, 0.0)]
    assert played(with_time_limit(made, 5), solution) == [(5, 0.955, 0.0)]
    cut = with_time_limit(with_time_limit(made, 3), 4)
    assert cut.episode_limit == 3
    # The next episode begins at the start, whatever the action at its first step.
    expected = [(3, 0.0, 1.0), (3, 0.0, 1.0)]
    assert played(cut, [*solution[:3], forward, *solution[:3]]) == expected
    assert with_time_limit(made, 100) is made


@pytest.mark.parametrize("name", ["Game2048-v1", "MiniGrid-Empty-5x5-v0"])
def test_the_setting_holds_also_where_envpool_ignores_it(name):
    if name not in envpool_names():
        pytest.skip(f"this EnvPool has no {name}")
    limited = envs.NativeEnvironment(name, max_episode_steps=3)
    assert played(limited, [0] * 7) == [(3, 0.0, 1.0)] * 2


@needs_minigrid
@pytest.mark.parametrize(("steps", "length"), [(250, 64), (20, 20)])
def test_a_limit_lengthens_no_episode_whose_limit_is_not_known(steps, length):
    limited = with_time_limit(envs.NativeEnvironment("BabyAI-GoToLocal-v0"), steps)
    left = 0
    assert played(limited, [left] * 140)[:2] == [(length, 0.0, 1.0)] * 2


@dataclasses.dataclass(frozen=True)
class Own:
    """An environment of one's own, of which only its settings matter."""

    max_episode_steps: int | None = None
    name = "own"


class NoDataclass:
    max_episode_steps = 5

    def spec(self):
        return CountingEnvironment(0).spec()


@pytest.mark.parametrize(("before", "limit"), [(None, 9), (5, 5), (20, 9)])
def test_an_environment_of_ones_own_needs_no_episode_limit(before, limit):
    assert with_time_limit(Own(before), 9) == Own(limit)


def test_an_environment_without_such_a_field_is_refused():
    with pytest.raises(ConfigError, match="NoDataclass has no max_episode_steps to set"):
        with_time_limit(NoDataclass(), 9)


class Late(CountingEnvironment):
    reward_delay = 3


class Flow(ControlFlow):
    """Its agent acts once."""

    def agents(self):
        number = dm_specs.Array((), np.float32)
        return {"a": specs.EnvironmentSpec(number, number)}

    def run_one_episode(self):
        yield Act("a", np.float32(0))
        yield End("a", np.float32(0))


@pytest.mark.parametrize(
    ("made", "late"),
    [
        (PythonEnvironment(Late), "rewards, which it reports up to 3 steps late, .* in Late"),
        (MultiAgentEnvironment(Flow), "the pending rewards of waiting agents .* in Flow"),
    ],
)
def test_a_limit_that_would_lose_rewards_is_refused(made, late):
    for _ in range(2):  # before and after the environment knows its spec
        with pytest.raises(ConfigError, match=rf"^evaluator\.max_episode_steps=9: {late}; let it"):
            with_time_limit(made, 9)
        made.spec()


def test_several_agents():
    pytest.importorskip("pettingzoo")
    made = with_time_limit(envs.make("mpe2:simple_spread_v3"), 9)
    assert made.wrappers.max_episode_steps == 9


def test_copies():
    made = PythonEnvironment(CountingEnvironment, wrappers=WrapperConfig(max_episode_steps=20))
    assert with_time_limit(Copies(made, 2), 9) == Copies(with_time_limit(made, 9), 2)
    assert with_time_limit(Copies(made, 2), 9).episode_limit == 9
    with pytest.raises(ConfigError, match="NoDataclass has no max_episode_steps to set"):
        with_time_limit(Copies(NoDataclass(), 2), 9)
