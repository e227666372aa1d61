"""A function between the agent's action and the environment's."""

import gymnasium
import numpy as np
import pytest

from distrl import envs
from distrl.envs import PythonEnvironment, WrapperConfig
from distrl.envs.multi_agent.environment import MultiAgentEnvironment
from distrl.errors import ConfigError
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


def test_where_it_cannot_be_it_is_refused_in_one_line():
    wrappers = WrapperConfig(post_process=shifted)
    with pytest.raises(ConfigError, match=r"EnvPool's Pendulum-v1 takes no wrappers.post_process"):
        envs.make("Pendulum-v1", wrappers=wrappers)
    with pytest.raises(ConfigError, match="post_process is for environments of one agent"):
        MultiAgentEnvironment(CountingAgents, "counting", wrappers)
    with pytest.raises(ConfigError, match="must be a function"):
        WrapperConfig(post_process=3)
