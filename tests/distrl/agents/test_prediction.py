"""Predictions of rewards and returns, by hand arithmetic."""

import types

import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs as dm_specs

from distrl import specs
from distrl.agents.networks import NetworkConfig
from distrl.agents.prediction import PredictionConfig, balance
from distrl.agents.tunable import Tunable
from distrl.envs import PythonEnvironment
from distrl.errors import ConfigError
from distrl.experiment import Experiment
from distrl.replay.config import ReplayConfig
from distrl.specs import EnvironmentSpec
from distrl.testing import CountingEnvironment
from distrl.types import StepType, Trajectory

SPEC = EnvironmentSpec(dm_specs.Array((2,), np.float32), dm_specs.DiscreteArray(2, np.int32))
F, M, L = StepType.FIRST, StepType.MID, StepType.LAST
# One stream: an episode of two transitions, the step to the next, and one transition of that.
KINDS = np.array([[F], [M], [L], [F], [M]], np.int8)
REWARD = np.array([[0], [0], [2], [0], [4]], np.float32)
DISCOUNT = np.array([[1], [1], [0], [1], [1]], np.float32)
ACTION = np.array([[1], [0], [1], [0], [1]], np.int32)


def loss_of(config, outputs):
    """Returns loss and logs for these outputs [T + 1, 1, *] of the network."""
    agent = config.make(SPEC)
    unroll = lambda params, timestep, state: (jnp.asarray(outputs, jnp.float32), state)  # noqa: E731
    agent.network = types.SimpleNamespace(unroll=unroll)
    timestep = specs.zeros(specs.timestep_struct(SPEC), *KINDS.shape)
    timestep = timestep._replace(step_type=KINDS, reward=REWARD, discount=DISCOUNT)
    batch = Trajectory(timestep, ACTION, (), KINDS, (), None, None, None)
    return agent.loss({}, batch)


def test_the_reward_of_the_action_taken_is_predicted():
    outputs = np.arange(10.0).reshape(5, 1, 2)  # taken: 1, 2, (5), 6
    loss, logs = loss_of(PredictionConfig(balanced=False), outputs)
    # Rewards 0, 2, (0), 4: errors 1, 0, 2.
    assert float(loss) == pytest.approx(0.5 * (1 + 0 + 4) / 3)
    assert float(logs["predicted"]) == pytest.approx((1 + 2 + 6) / 3)
    loss, _ = loss_of(PredictionConfig(), outputs)  # two rewards are not 0: 3/4 each; one is: 3/2
    assert float(loss) == pytest.approx(0.5 * (1 * 1.5 + 4 * 0.75) / 3)


def test_the_return_is_predicted_with_a_discount_of_its_own():
    outputs = np.array([1.0, 2, 3, 5, 7]).reshape(5, 1, 1)
    loss, logs = loss_of(PredictionConfig("return", discount=0.5, trace=1.0), outputs)
    # 0 + 0.5 * 2 = 1; 2 at a true end; 4 + 0.5 * 7 = 7.5 where the unroll ends.
    assert float(logs["target"]) == pytest.approx((1 + 2 + 7.5) / 3)
    assert float(loss) == pytest.approx(0.5 * (0 + 0 + 2.5**2) / 3)


def test_rare_transitions_have_half_of_the_weight():
    real = np.array([[True], [True], [True], [False]])
    weight = balance(jnp.array([[True], [False], [False], [True]]), jnp.asarray(real))
    np.testing.assert_allclose(weight[:3, 0], [1.5, 0.75, 0.75], rtol=1e-6)
    for rare in (np.zeros((4, 1), bool), np.ones((4, 1), bool)):
        np.testing.assert_array_equal(balance(jnp.asarray(rare), jnp.asarray(real)), 1)


def test_it_does_not_act_and_has_no_memory():
    with pytest.raises(ConfigError, match=r"network\.core=lstm: a prediction does not act"):
        PredictionConfig(network=NetworkConfig(core="lstm"))
    with pytest.raises(ConfigError, match="a prediction computes no priorities"):
        PredictionConfig().check_replay(ReplayConfig("prioritized"), 4)
    environment = PythonEnvironment(CountingEnvironment, "counting")
    with pytest.raises(ConfigError, match="'p' has PredictionConfig, which chooses no actions"):
        Experiment(environment, policies={"p": PredictionConfig("return")})
    tunable = Tunable(PredictionConfig("return"), {"learning_rate": (1e-4, 1e-2)})
    for agent in (PredictionConfig("return"), tunable):
        with pytest.raises(ConfigError, match="which chooses no actions"):
            Experiment(environment, agent)
