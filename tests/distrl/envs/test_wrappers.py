"""Wrappers: which steps they make of a script of an environment's steps."""

import dm_env
import numpy as np
import pytest
from dm_env import specs as dm_specs

from distrl.envs import PythonEnvironment, WrapperConfig
from distrl.envs.adapters.stepper import Step
from distrl.envs.adapters.wrappers import (
    ActionRepeat,
    StackFrames,
    TimeLimit,
    wrapped_spec,
)
from distrl.errors import ConfigError, SpecError
from distrl.specs import EnvironmentSpec
from distrl.types import StepType

FIRST, MID, LAST = StepType.FIRST, StepType.MID, StepType.LAST


class Script:
    """Its observation and reward are the number of the step; it ends after `length` steps."""

    def __init__(self, length=10**9, discount=0.0, env_info=(), observe=float):
        self._length, self._discount = length, discount
        self._env_info, self._observe = env_info, observe
        self.actions = []

    def reset(self):
        self._at = 0
        return Step(FIRST, 0.0, 1.0, self._observe(0), self._env_info)

    def step(self, action):
        self.actions.append(action)
        self._at += 1
        last = self._at == self._length
        return Step(
            LAST if last else MID, float(self._at), self._discount if last else 1.0,
            self._observe(self._at), self._env_info,
        )  # fmt: skip

    def close(self):
        self.closed = True


def roll(stepper, steps):
    """`steps` steps, resetting after LAST."""
    rolled = [stepper.reset()]
    for _ in range(steps):
        rolled.append(stepper.reset() if rolled[-1].step_type == LAST else stepper.step(0))
    return rolled


@pytest.mark.parametrize(
    "length, discount, wanted",
    [
        (10, 0.0, (LAST, 1.0)),  # the limit, before the end
        (3, 0.0, (LAST, 0.0)),  # a true end on the very step of the limit
        (3, 1.0, (LAST, 1.0)),  # the environment's own limit on that step
    ],
)
def test_time_limit(length, discount, wanted):
    steps = roll(TimeLimit(Script(length, discount), 3), 8)
    assert [s.step_type for s in steps] == [FIRST, MID, MID, LAST] * 2 + [FIRST]
    assert [(s.step_type, s.discount) for s in (steps[3], steps[7])] == [wanted] * 2
    assert steps[3].observation == 3.0  # the true final one


def test_an_episode_that_ends_before_the_limit_starts_its_count_anew():
    steps = roll(TimeLimit(Script(2), 3), 5)
    assert [s.step_type for s in steps] == [FIRST, MID, LAST, FIRST, MID, LAST]
    assert [s.discount for s in steps] == [1, 1, 0, 1, 1, 0]


def test_action_repeat_sums_and_stops_at_the_end():
    script = Script(length=7, env_info={"other": 1})
    steps = roll(ActionRepeat(script, 3), 4)
    assert [s.step_type for s in steps] == [FIRST, MID, MID, LAST, FIRST]
    assert [s.reward for s in steps] == [0, 1 + 2 + 3, 4 + 5 + 6, 7, 0]
    assert [s.observation for s in steps] == [0, 3, 6, 7, 0]
    assert [s.discount for s in steps] == [1, 1, 1, 0, 1]
    assert [int(s.env_info["time_steps"]) for s in steps] == [0, 3, 3, 1, 0]
    assert steps[1].env_info["time_steps"].dtype == np.int32
    assert [s.env_info["other"] for s in steps] == [1] * 5
    assert len(script.actions) == 7


def test_action_repeat_of_vectors_and_of_counted_steps():
    class Vectors(Script):
        def step(self, action):
            step = super().step(action)
            return step._replace(reward=np.array([step.reward, 1.0]), env_info={"time_steps": 5})

    _, step = roll(ActionRepeat(Vectors(), 2), 1)
    np.testing.assert_array_equal(step.reward, [3, 2])
    assert step.env_info["time_steps"] == 10


@pytest.mark.parametrize(
    "nest", [lambda action: action, lambda action: {"a": (action, np.int32(1))}]
)
def test_every_repeat_gets_the_action_whatever_was_done_to_the_one_before(nest):
    class Doubling(Script):
        def step(self, action):
            array = action if isinstance(action, np.ndarray) else action["a"][0]
            super().step(array.copy())
            array *= 2
            return Step(MID, 0.0, 1.0, 0.0)

    stepper = ActionRepeat(script := Doubling(), 3)
    stepper.reset()
    stepper.step(nest(np.ones(2)))
    np.testing.assert_array_equal(script.actions, np.ones((3, 2)))


def test_the_limit_counts_the_environments_own_steps():
    """The order of WrapperConfig: a limit of 5 within repeats of 2 gives steps of 2, 2 and 1."""
    config = WrapperConfig(max_episode_steps=5, action_repeat=2)
    stepper = PythonEnvironment(Endless, wrappers=config).make_stepper(0)
    steps = roll(stepper, 3)
    assert [int(s.env_info["time_steps"]) for s in steps] == [0, 2, 2, 1]
    assert [(s.step_type, s.discount) for s in steps[2:]] == [(MID, 1), (LAST, 1)]


def test_frame_stack():
    script = Script(length=4, observe=lambda i: np.full(2, i, np.uint8))
    steps = roll(StackFrames(script, 3, dm_specs.Array((2,), np.uint8)), 6)
    assert steps[0].observation.shape == (3, 2)
    assert steps[0].observation.dtype == np.uint8
    wanted = [[0, 0, 0], [0, 0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4], [0, 0, 0], [0, 0, 1]]
    assert [s.observation[:, 0].tolist() for s in steps] == wanted


def test_frame_stack_of_every_leaf_keeps_what_it_gave():
    buffer = np.zeros(1)

    def observe(i):
        buffer[0] = i  # an environment that gives the same array each time
        return {"a": buffer, "b": (i,)}

    spec = {"a": dm_specs.Array((1,), np.float32), "b": (dm_specs.Array((), np.int32),)}
    steps = roll(StackFrames(Script(observe=observe), 2, spec), 3)
    assert [s.observation["a"][:, 0].tolist() for s in steps] == [[0, 0], [0, 1], [1, 2], [2, 3]]
    assert [s.observation["b"][0].tolist() for s in steps] == [[0, 0], [0, 1], [1, 2], [2, 3]]


@pytest.mark.parametrize("frames", [1, 2])
def test_a_number_that_its_spec_lacks_is_refused_in_a_stack_too(frames):
    class Beyond(Endless):
        def reset(self):
            return dm_env.restart(0)

        def step(self, action):
            return dm_env.transition(1.0, 7)

        def observation_spec(self):
            return dm_specs.DiscreteArray(3)

    environment = PythonEnvironment(Beyond, wrappers=WrapperConfig(frame_stack=frames))
    with pytest.raises(SpecError, match=r"second observation: expected one of 3 .* number 7"):
        environment.spec()


def test_specs_follow():
    config = WrapperConfig(action_repeat=2, frame_stack=3, max_episode_steps=4)
    spec = PythonEnvironment(Endless, wrappers=config).spec()
    assert spec.env_info["time_steps"].dtype == np.int32
    assert (spec.observation.shape, spec.observation.dtype) == ((3, 1), np.float32)
    discrete = EnvironmentSpec(dm_specs.DiscreteArray(4, np.int32), dm_specs.DiscreteArray(2))
    stacked = wrapped_spec(discrete, WrapperConfig(frame_stack=2)).observation
    assert (stacked.shape, stacked.dtype, stacked.maximum.tolist()) == ((2,), np.int32, [3, 3])


@pytest.mark.parametrize("name", ["max_episode_steps", "action_repeat", "frame_stack"])
def test_settings_are_checked(name):
    for wrong in (0, 2.0, float("nan"), "5", True):
        with pytest.raises(ConfigError, match=rf"wrappers\.{name} must be a whole number, 1 or"):
            WrapperConfig(**{name: wrong})


@pytest.mark.parametrize("name", ["max_episode_steps", "action_repeat"])
def test_late_rewards_go_with_neither_repeats_nor_a_limit_from_outside(name):
    with pytest.raises(ConfigError, match=rf"wrappers\.{name}=3: .* 2 steps late"):
        PythonEnvironment(Late, wrappers=WrapperConfig(**{name: 3})).spec()


class Endless(dm_env.Environment):
    """Echoes its action, and never ends."""

    def reset(self):
        return dm_env.restart(np.zeros(1, np.float32))

    def step(self, action):
        return dm_env.transition(1.0, np.full(1, action, np.float32))

    def observation_spec(self):
        return dm_specs.Array((1,), np.float32)

    def action_spec(self):
        return dm_specs.BoundedArray((1,), np.float64, -1, 1)


class Late(Endless):
    reward_delay = 2
