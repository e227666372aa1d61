"""Policies that do not learn."""

import gymnasium
import numpy as np
import pytest
from dm_env import specs as dm_specs

from distrl.envs import PoolConfig, PythonEnvironment
from distrl.errors import ConfigError, SpecError
from distrl.rules import RandomPolicy, Rule
from distrl.specs import EnvironmentSpec
from distrl.types import StepType, TimeStep

NUMBER = dm_specs.Array((2,), np.float32)


def _timestep(observation, batch_size):
    ones = np.ones(batch_size, np.float32)
    return TimeStep(np.full(batch_size, StepType.MID, np.int8), ones, ones, observation, ones)


def _act(policy, spec, observation, batch_size, seed=0):
    source = policy.make_source(spec, 100, seed)
    streams = np.arange(batch_size, dtype=np.int32) + 7
    answer = source.inference(streams, _timestep(observation, batch_size), with_state=True)
    assert (answer.extras, answer.version, answer.state) == ((), 0, ())
    return answer.action


def test_a_rule_acts_for_each_stream():
    spec = EnvironmentSpec({"x": NUMBER}, dm_specs.DiscreteArray(5, np.int32))
    observation = {"x": np.array([[1, 2], [3, 1]], np.float32)}
    action = _act(Rule(lambda seen: int(seen["x"].argmax())), spec, observation, 2)
    assert action.tolist() == [1, 0]
    assert action.dtype == np.int32


class FromFive(gymnasium.Env):
    """Observes 5 or 7 of five numbers from 5 on, and takes 1, 2 or 3."""

    observation_space = gymnasium.spaces.Discrete(5, start=5)
    action_space = gymnasium.spaces.Dict(
        {"key": gymnasium.spaces.Discrete(3, start=1), "speed": gymnasium.spaces.Box(-9, 9, (1,))}
    )

    def reset(self, *, seed=None, options=None):
        return 5 if seed else 7, {}

    def step(self, action):
        return 7, float(action["key"]), False, False, {}


def test_a_rule_has_the_environments_own_numbers_and_a_batched_one_those_from_0():
    environment = PythonEnvironment(FromFive, pool=PoolConfig(kind="loop"))
    spec, pool, seen = environment.spec(), environment.make_pool(2, 2, [0, 1]), []
    step = pool.reset()

    def rule(observation):
        seen.append(int(observation))
        return {"key": 3 if observation == 7 else 1, "speed": np.array([0.5])}

    source = Rule(rule).make_source(spec, 2, 0)
    answer = source.inference(step.env_id, step)
    assert seen == [7, 5]
    assert answer.action["key"].tolist() == [2, 0]  # as agents count
    assert answer.action["key"].dtype == np.int32
    assert pool.step(answer.action).reward.tolist() == [3, 1]

    def batched(timestep):
        seen.append(timestep.observation.tolist())
        return {"key": timestep.observation, "speed": np.zeros((2, 1), np.float32)}

    source = Rule(batched, batched=True).make_source(spec, 2, 0)
    assert source.inference(step.env_id, step).action["key"].tolist() == [2, 0] == seen[-1]

    source = Rule(lambda seen: {**rule(seen), "key": 0}).make_source(spec, 2, 0)
    with pytest.raises(SpecError, match="expected whole numbers from 1 to 3, got 0"):
        pool.step(source.inference(step.env_id, step).action)
    pool.close()


def test_a_batched_rule_gets_the_streams():
    spec = EnvironmentSpec(NUMBER, dm_specs.Array((), np.float32))
    rule = Rule(lambda timestep: timestep.env_id * 0.5, batched=True)
    action = _act(rule, spec, np.zeros((3, 2), np.float32), 3)
    assert action.tolist() == [3.5, 4, 4.5]
    assert action.dtype == np.float32


def test_a_rules_wrong_action_is_named():
    spec = EnvironmentSpec(NUMBER, dm_specs.DiscreteArray(5, np.int32))

    def jump(observation):
        return np.zeros(3)

    with pytest.raises(SpecError, match="action of jump: expected int32"):
        _act(Rule(jump), spec, np.zeros((2, 2), np.float32), 2)
    with pytest.raises(ConfigError, match="must be callable"):
        Rule("jump")


def test_random_actions_are_uniform_and_within_bounds():
    spec = EnvironmentSpec(
        NUMBER,
        {
            "discrete": dm_specs.DiscreteArray(3, np.int32),
            "integers": dm_specs.BoundedArray((2,), np.int32, 0, np.array([1, 4])),
            "box": dm_specs.BoundedArray((2,), np.float32, -2, np.array([1, 2])),
            "half": dm_specs.BoundedArray((), np.float32, 0, np.inf),
            "free": NUMBER,
        },
    )
    action = _act(RandomPolicy(), spec, np.zeros((6000, 2), np.float32), 6000)
    assert (abs(np.bincount(action["discrete"]) - 2000) < 150).all()
    assert (abs(np.bincount(action["integers"][:, 1]) - 1200) < 150).all()
    assert action["integers"][:, 0].max() == 1
    assert (abs(action["box"].min(axis=0) - [-2, -2]) < 0.01).all()
    assert (abs(action["box"].max(axis=0) - [1, 2]) < 0.01).all()
    assert action["half"].min() == 0
    assert abs(action["free"].std() - 1) < 0.05
    again = _act(RandomPolicy(), spec, np.zeros((6000, 2), np.float32), 6000)
    assert (again["box"] == action["box"]).all()


def test_random_choices_of_several_elements_are_legal():
    mask = np.tile(np.array([1, 0, 1, 0, 1, 0, 0, 0], np.int8), (2000, 1))
    spec = EnvironmentSpec(
        {"observation": NUMBER, "action_mask": dm_specs.BoundedArray((8,), np.int8, 0, 1)},
        dm_specs.BoundedArray((3,), np.int32, np.array([1, 0, 0]), np.array([3, 1, 2])),
    )
    observation = {"observation": np.zeros((2000, 2), np.float32), "action_mask": mask}
    action = _act(RandomPolicy(), spec, observation, 2000)
    first = np.bincount(action[:, 0], minlength=4)
    assert first[2] == 0 and abs(first[1] - 1000) < 150  # counted from 1
    assert (action[:, 1] == 1).all()
    assert (np.bincount(action[:, 2]) > 550).all()  # none is legal: all count


def test_random_actions_are_legal():
    mask = np.tile(np.array([[0, 1, 0, 1], [0, 0, 0, 0]], np.int8), (2000, 1))
    spec = EnvironmentSpec(
        {"observation": NUMBER, "action_mask": dm_specs.BoundedArray((4,), np.int8, 0, 1)},
        dm_specs.DiscreteArray(4, np.int32),
    )
    observation = {"observation": np.zeros((4000, 2), np.float32), "action_mask": mask}
    action = _act(RandomPolicy(), spec, observation, 4000)
    counts = np.bincount(action[::2], minlength=4)
    assert counts[0] == counts[2] == 0
    assert abs(counts[1] - 1000) < 150
    assert (np.bincount(action[1::2], minlength=4) > 350).all()
