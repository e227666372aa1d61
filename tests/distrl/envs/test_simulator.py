"""Simulators whose rewards come late, counted by hand."""

import numpy as np
import pytest
from dm_env import specs as dm_specs

from distrl.envs.simulator import Simulator
from distrl.errors import ConfigError, SpecError


class Orders(Simulator):
    """Episodes of `length` steps; the reward of step i is 10 ** i. Notes what it is asked."""

    def __init__(self, delay, length, truncated=False, size=()):
        self.reward_delay = delay
        self._length, self._truncated, self._size = length, truncated, size
        self.asked = []

    def reset_simulator(self):
        self._time = 0

    def to_env_action(self, action):
        return {"order": int(action)}

    def step_simulator(self, env_action):
        self.taken = env_action
        self._time += 1
        end = self._time == self._length
        return end and not self._truncated, end and self._truncated

    def get_state(self):
        return np.array([self._time], np.float32)

    def get_reward(self, step):
        assert step < self._time  # never of an action that was not taken yet
        self.asked.append((self._time - 1, step))
        return np.full(self._size, 10.0**step, np.float32) if self._size else 10.0**step

    def observation_spec(self):
        return dm_specs.Array((1,), np.float32)

    def action_spec(self):
        return dm_specs.DiscreteArray(9)

    def reward_spec(self):
        return dm_specs.Array(self._size, np.float32)


class WithSuccess(Orders):
    def success(self):
        return {1: True, 2: False}.get(self._length)


def play(env):
    """Each step's reward and late rewards, FIRST included."""
    step = env.reset()
    steps = [(step, env.env_info())]
    while not step.last():
        step = env.step(np.int32(3))
        steps.append((step, env.env_info()))
    return steps


@pytest.mark.parametrize("truncated", [False, True])
def test_each_reward_is_asked_for_once_and_in_its_place(truncated):
    env = Orders(2, 5, truncated)
    steps = play(env)
    assert env.asked == [(2, 0), (3, 1), (4, 2), (4, 3), (4, 4)]
    assert env.taken == {"order": 3}
    parts = [info["late_reward"].tolist() for _, info in steps]
    assert parts == [
        [0, 0, 0], [0, 0, 0], [0, 0, 0], [0, 0, 1], [0, 0, 10], [10000, 1000, 100]
    ]  # fmt: skip
    assert [step.reward for step, _ in steps] == [None, 0, 0, 1, 10, 11100]
    assert steps[-1][0].discount == float(truncated)
    again = [info["late_reward"].tolist() for _, info in play(env)]
    assert again == parts


def test_an_episode_shorter_than_the_delay():
    env = Orders(5, 2)
    ((first, nothing), (middle, none), (last, all_parts)) = play(env)
    assert first.first() and not nothing["late_reward"].any() and not none["late_reward"].any()
    assert middle.reward == 0 and last.reward == 11
    assert all_parts["late_reward"].tolist() == [10, 1, 0, 0, 0, 0]


def test_without_delay_there_is_nothing_late():
    env = Orders(0, 3)
    assert env.env_info_spec() == {}
    assert [(step.reward, info) for step, info in play(env)[1:]] == [(1, {}), (10, {}), (100, {})]


def test_vector_rewards():
    env = Orders(1, 3, size=(2,))
    assert env.env_info_spec()["late_reward"].shape == (2, 2)
    steps = play(env)
    assert [step.reward.tolist() for step, _ in steps[1:]] == [[0, 0], [1, 1], [110, 110]]
    assert steps[3][1]["late_reward"].tolist() == [[100, 100], [10, 10]]


@pytest.mark.parametrize(("length", "success"), [(1, 1), (2, 0), (3, -1)])
def test_success(length, success):
    env = WithSuccess(1, length)
    assert env.env_info_spec()["success"].dtype == np.int8
    said = [info["success"] for _, info in play(env)]
    assert said == [-1] * length + [success]
    assert play(env)[0][1]["success"] == -1  # the next episode's


def test_a_share_is_no_success():
    class Graded(WithSuccess):
        def success(self):
            return 0.3

    with pytest.raises(SpecError, match=r"Graded.success\(\): expected True .*, got 0.3"):
        play(Graded(1, 2))


def test_what_is_refused():
    for delay in (-1, 1.5, True):
        with pytest.raises(ConfigError, match=r"Orders.reward_delay must be a whole number"):
            Orders(delay, 3).env_info_spec()
    env = Orders(0, 3, size=(2,))
    env.get_reward = lambda step: np.zeros(3)
    env.reset()
    with pytest.raises(SpecError, match=r"Orders.get_reward\(0\): expected shape \[2\].*got \[3\]"):
        env.step(0)
