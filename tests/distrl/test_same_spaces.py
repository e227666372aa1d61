"""In which environments a policy can act: those whose numbers it was made for."""

import gymnasium
import numpy as np
import pytest
from dm_env import specs as dm_specs
from gymnasium import spaces

from distrl.agents.impala import IMPALAConfig
from distrl.envs import MultiAgentEnvironment, PythonEnvironment
from distrl.errors import ConfigError
from distrl.experiment import Experiment
from distrl.same_spaces import different_part
from distrl.saved_policy import check_spec
from distrl.specs import EnvironmentSpec
from distrl.testing import CountingAgents

TWO = spaces.Discrete(2)


def environment(observation, action=TWO):
    class Still(gymnasium.Env):
        observation_space, action_space = observation, action

        def reset(self, *, seed=None, options=None):
            return observation.sample(), {}

        def step(self, action):
            return observation.sample(), 0.0, False, False, {}

    return PythonEnvironment(Still, "still")


def box(low, high, dtype=np.int32):
    return spaces.Box(low, high, (2,), dtype)


NEST = spaces.Dict({"state": spaces.Discrete(5), "x": box(-1, 1, np.float32)})
WIDER = spaces.Dict({"state": spaces.Discrete(6), "x": box(-1, 1, np.float32)})
NARROWER = spaces.Dict({"state": spaces.Discrete(4), "x": box(-9, 9, np.float32)})

DIFFERENT = {
    "more states": (spaces.Discrete(5), spaces.Discrete(7)),
    "states counted from elsewhere": (spaces.Discrete(5), spaces.Discrete(5, start=1)),
    "one of several counted from elsewhere": (
        spaces.MultiDiscrete([5, 5]),
        spaces.MultiDiscrete([5, 5], start=[0, 1]),
    ),
    "larger numbers": (box(0, 9), box(0, 10)),
    "smaller numbers": (box(0, 9), box(-1, 9)),
    "numbers without bounds": (box(0, 9, np.uint8), box(0, 255, np.uint8)),
    "more states in a part": (NEST, WIDER),
    "another shape": (box(0, 9), spaces.Discrete(5)),
}
ALIKE = {
    "the same": (spaces.Discrete(5, start=2), spaces.Discrete(5, start=2)),
    "fewer states": (spaces.Discrete(5), spaces.Discrete(3)),
    "smaller bounds": (box(0, 9), box(1, 8)),
    "bounds of floats": (box(-1, 1, np.float32), box(-np.inf, 5, np.float32)),
    "fewer states in a part": (NEST, NARROWER),
}


@pytest.mark.parametrize("case", DIFFERENT)
def test_observations_that_networks_were_not_made_for_are_refused(case):
    one, other = map(environment, DIFFERENT[case])
    with pytest.raises(ConfigError, match=r"^x was trained with another observation: .*; here it "):
        check_spec(one.spec(), other.spec(), "x")
    with pytest.raises(
        ConfigError, match=r"^evaluation_environment: still has another observation than the agent"
    ) as error:
        Experiment(one, IMPALAConfig(), evaluation_environment=other)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("case", ALIKE)
def test_observations_within_those_are_not(case):
    one, other = map(environment, ALIKE[case])
    check_spec(one.spec(), other.spec(), "x")
    Experiment(one, IMPALAConfig(), evaluation_environment=other)


@pytest.mark.parametrize(
    "action, text",
    [
        (spaces.Discrete(3), "num_values=3"),
        (spaces.Discrete(2, start=3), "num_values=2), counted from 3"),
        (spaces.Discrete(1), "num_values=1"),
    ],
)
def test_actions_are_the_same_ones(action, text):
    made_for, other = environment(NEST), environment(NEST, action)
    part, was, now = different_part(made_for.spec(), other.spec())
    assert part == "action"
    assert "num_values=2" in was and "counted" not in was
    assert text in now


def test_bytes_have_the_same_bounds_whether_they_are_declared_or_not():
    """EnvPool's images have none, gymnasium's 0 and 255."""
    declared = dm_specs.BoundedArray((4, 4), np.uint8, 0, 255)
    one, other = (
        EnvironmentSpec(leaf, dm_specs.DiscreteArray(2))
        for leaf in (declared, dm_specs.Array((4, 4), np.uint8))
    )
    assert different_part(one, other) is different_part(other, one) is None


def test_joint_specs_of_several_agents_are_alike():
    spec = MultiAgentEnvironment(CountingAgents).spec()
    assert different_part(spec, spec) is None
