"""A function between the agent's action and the environment's."""

import gymnasium
import numpy as np
import pytest

from distrl import envs
from distrl.envs import PythonEnvironment, WrapperConfig
from distrl.envs.multi_agent.environment import MultiAgentEnvironment
from distrl.errors import ConfigError, SpecError
from distrl.testing import CountingAgents


class Echo(gymnasium.Env):
    """Observes the number of steps, and as a reward what it was given as an action."""

    observation_space = gymnasium.spaces.Box(0, 100, (1,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        self._steps = 0
        return self._observe(), {}

    def step(self, action):
        self._steps += 1
        return self._observe(), float(action[0]), self._steps == 3, False, {}

    def _observe(self):
        return np.array([self._steps], np.float32)


def shifted(action, observation):
    """Ten more than the agent's, for each step so far."""
    return action + 10 * observation


@pytest.mark.parametrize("repeat", [1, 2])
def test_the_environment_gets_another_action_than_all_else(repeat):
    wrappers = WrapperConfig(post_process=shifted, action_repeat=repeat)
    pool = PythonEnvironment(Echo, wrappers=wrappers).make_pool(2, 2, [0, 1])
    pool.reset()
    actions = np.array([[0.5], [5.0]], np.float32)  # the second is clipped to 1 first
    steps = [pool.step(actions) for _ in range(2)]
    want = [[0.5, 1], [10.5, 11]] if repeat == 1 else [[11, 12], [20.5, 21]]
    np.testing.assert_allclose([step.reward for step in steps], want)
    for step in steps:
        np.testing.assert_array_equal(step.prev_action, actions)
    pool.close()


class FromThree(Echo):
    """Takes -1, 0 or 1, and observes whole numbers from 3 on."""

    observation_space = gymnasium.spaces.Discrete(9, start=3)
    action_space = gymnasium.spaces.Discrete(3, start=-1)

    def step(self, action):
        return super().step([action])

    def _observe(self):
        return 3 + self._steps


def test_numbers_are_the_environments_own():
    seen = []

    def negated(action, observation):
        seen.append((int(action), int(observation)))
        return -action

    environment = PythonEnvironment(FromThree, wrappers=WrapperConfig(post_process=negated))
    environment.spec()
    seen.clear()
    pool = environment.make_pool(1, 1, [0])
    pool.reset()
    steps = [pool.step(np.array([action], np.int32)) for action in (0, 2)]
    pool.close()
    assert seen == [(-1, 3), (1, 4)]
    assert [step.reward[0] for step in steps] == [1, -1]
    assert [step.prev_action[0] for step in steps] == [0, 2]
    assert [step.observation[0] for step in steps] == [1, 2]


@pytest.mark.parametrize(
    ("result", "what"),
    [
        (1.9, r"expected int32\[\], got float64\[\]"),
        ([1], r"expected int32\[\], got int32\[1\]"),
        (None, r"expected int32\[\], got object\[\]"),
        (2, "expected whole numbers from -1 to 1, got 2"),
        (-2, "expected whole numbers from -1 to 1, got -2"),
    ],
)
def test_what_is_no_action_is_refused_in_one_line(result, what):
    wrappers = WrapperConfig(post_process=lambda action, observation: result)
    with pytest.raises(SpecError, match=rf"^environment.wrappers.post_process's action: {what}"):
        PythonEnvironment(FromThree, wrappers=wrappers).spec()


def test_a_list_counts_from_the_start_too():
    class Two(FromThree):
        action_space = gymnasium.spaces.MultiDiscrete([3, 3], start=[5, -1])
        got = None

        def step(self, action):
            Two.got = action.tolist()
            return Echo.step(self, action)

    wrappers = WrapperConfig(post_process=lambda action, observation: [7, -1])
    PythonEnvironment(Two, wrappers=wrappers).spec()
    assert Two.got == [7, -1]


def test_floats_reach_the_environment_with_all_their_bits():
    class Wide(Echo):
        action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float64)
        got = None

        def step(self, action):
            Wide.got = action
            return super().step(action)

    wrappers = WrapperConfig(post_process=lambda action, observation: np.array([0.1]))
    PythonEnvironment(Wide, wrappers=wrappers).spec()
    assert Wide.got.dtype == np.float64 and Wide.got[0] == 0.1


def test_where_it_cannot_be_it_is_refused_in_one_line():
    wrappers = WrapperConfig(post_process=shifted)
    with pytest.raises(ConfigError, match=r"EnvPool's Pendulum-v1 takes no wrappers.post_process"):
        envs.make("Pendulum-v1", wrappers=wrappers)
    with pytest.raises(ConfigError, match="post_process is for environments of one agent"):
        MultiAgentEnvironment(CountingAgents, "counting", wrappers)
    with pytest.raises(ConfigError, match="must be a function"):
        WrapperConfig(post_process=3)
