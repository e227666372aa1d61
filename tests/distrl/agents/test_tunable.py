"""Tunable agents: updates are those of the plain agent with these values, without compiling."""

import dataclasses

import jax
import numpy as np
import pytest
from dm_env import specs as dm_specs

from distrl import specs
from distrl.agents import settings
from distrl.agents.a2c import A2C, A2CConfig
from distrl.agents.action_noise import NoiseSchedule
from distrl.agents.ddpg import DDPGConfig
from distrl.agents.dqn import DQNConfig
from distrl.agents.networks import NetworkConfig
from distrl.agents.ppo import PPOConfig
from distrl.agents.r2d2 import R2D2Config
from distrl.agents.sac import SACConfig
from distrl.agents.td3 import TD3Config
from distrl.agents.tunable import Tunable, hyperparameters, with_hyperparameters
from distrl.errors import ConfigError
from distrl.gradients.comparison import check_own_loss
from distrl.learning.random_batches import random_batch
from distrl.saved.plain_settings import decode, encode
from distrl.sharing.config import has_one_gradient
from distrl.specs import EnvironmentSpec
from distrl.transforms.agent import TransformedAgent
from distrl.transforms.observations import ObservationNormalizer
from tests.support.selection import full

SPEC = EnvironmentSpec(dm_specs.Array((4,), np.float32), dm_specs.DiscreteArray(3, np.int32))
CONTINUOUS = SPEC._replace(action=dm_specs.BoundedArray((2,), np.float32, -1, 1))
KEY = np.array([0, 1], np.uint32)
SMALL = NetworkConfig(hidden_sizes=(8,))
LSTM = NetworkConfig(hidden_sizes=(8,), core="lstm", core_size=4)
RANGES = {"learning_rate": (1e-4, 1e-1), "entropy_cost": (1e-3, 1.0)}


def close(a, b):
    return jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), a, b)


@pytest.mark.parametrize(
    ("plain", "spec", "values"),
    [
        (A2CConfig(SMALL), SPEC, {"learning_rate": 0.03, "entropy_cost": 0.5}),
        full(PPOConfig(SMALL, minibatches=2), SPEC, {"clip_ratio": 0.1, "learning_rate": 0.02}),
        full(R2D2Config(LSTM, burn_in=1, n_step=1), SPEC, {"learning_rate": 0.02, "discount": 0.5}),
        full(DDPGConfig((8,)), CONTINUOUS, {"target_tau": 0.5, "critic_learning_rate": 0.02}),
    ],
)
def test_updates_are_those_of_the_plain_agent(plain, spec, values, on_policy_batch):
    ranges = {name: (value / 10, min(1.0, value * 10)) for name, value in values.items()}
    tunable = Tunable(plain, ranges).make(spec)
    params = with_hyperparameters(tunable.initial_params(KEY), values)
    np.testing.assert_allclose(list(hyperparameters(params).values()), list(values.values()))
    state = tunable.initial_learner_state(params)
    agent = dataclasses.replace(plain, **values).make(spec)
    if hasattr(plain, "entropy_cost"):
        batch = on_policy_batch(agent, params["agent"])
    else:
        batch = random_batch(agent, 6, 8)
    step = jax.jit(tunable.learner_step)
    got, got_state, logs = step(params, state, batch)
    want, want_state, _ = jax.jit(agent.learner_step)(params["agent"], state, batch)
    close(got["agent"], want)
    close(got_state, want_state)
    for name, value in values.items():
        np.testing.assert_allclose(logs[f"tuned_{name}"], value, rtol=1e-6)
    # Other values give other parameters, and compile nothing.
    other = with_hyperparameters(params, {name: value / 5 for name, value in values.items()})
    changed, _, _ = step(other, state, batch)
    assert step._cache_size() == 1
    pairs = zip(jax.tree.leaves(changed["agent"]), jax.tree.leaves(want), strict=True)
    assert any(np.abs(np.asarray(x) - np.asarray(y)).max() > 1e-6 for x, y in pairs)


def test_its_actions_are_those_of_the_plain_agent():
    plain = DDPGConfig((8,), exploration_noise=0.3)
    tunable = Tunable(plain, {"exploration_noise": (0.01, 1.0)}).make(CONTINUOUS)
    params = with_hyperparameters(tunable.initial_params(KEY), {"exploration_noise": 0.3})
    step = specs.zeros(specs.acting_struct(CONTINUOUS), 5)
    got, _ = jax.jit(tunable.actor_step)(KEY, params, step, ())
    want, _ = plain.make(CONTINUOUS).actor_step(KEY, params["agent"], step, ())
    close(got, want)
    tunable, agent = Tunable(A2CConfig(SMALL), RANGES).make(SPEC), A2CConfig(SMALL).make(SPEC)
    params, step = tunable.initial_params(KEY), specs.zeros(specs.acting_struct(SPEC), 5)

    @jax.jit
    def both(params):
        known = tunable.action_distribution(KEY, params, step, ())
        return known.parameters, agent.action_distribution(
            KEY, params["agent"], step, ()
        ).parameters

    close(*both(params))


def test_it_begins_with_random_values_of_the_seed():
    agent = Tunable(A2CConfig(SMALL), RANGES).make(SPEC)
    init = jax.jit(agent.initial_params)
    values = [hyperparameters(init(np.array([0, n], np.uint32))) for n in range(40)]
    assert values[3] == hyperparameters(init(np.array([0, 3], np.uint32)))
    for name, (least, most) in RANGES.items():
        drawn = np.log([each[name] for each in values])
        assert np.log(least) <= drawn.min() < np.log(least * 3)
        assert np.log(most / 3) < drawn.max() <= np.log(most)
    given = Tunable(A2CConfig(SMALL, learning_rate=0.01), RANGES, draw=False).make(SPEC)
    assert hyperparameters(given.initial_params(KEY))["learning_rate"] == np.float32(0.01)


def test_behind_transforms():
    transforms = (ObservationNormalizer(),)
    inner = Tunable(A2CConfig(SMALL), RANGES).make(SPEC)
    agent = TransformedAgent(inner, transforms, SPEC)
    params = agent.initial_params(KEY)
    changed = with_hyperparameters(params, {"learning_rate": 0.5, "entropy_cost": 0.25})
    assert hyperparameters(changed) == {"learning_rate": 0.5, "entropy_cost": 0.25}
    assert hyperparameters(params) != hyperparameters(changed)


def test_settings_of_the_algorithm_in_it_can_be_replaced():
    plain = R2D2Config(LSTM, evaluation_epsilon=0.5)
    tunable = Tunable(plain, {"learning_rate": (1e-4, 1e-1)})
    assert settings.algorithm(plain) is settings.algorithm(tunable) is plain
    for config in (plain, tunable):
        changed = settings.with_settings(config, evaluation_epsilon=0.0)
        assert type(changed) is type(config)
        assert settings.algorithm(changed).evaluation_epsilon == 0.0
        assert settings.with_settings(changed, evaluation_epsilon=0.5) == config


class OwnA2C(A2C):
    """The gradients of whose shares are compared, as of all agents that are not the package's."""


class OwnConfig(A2CConfig):
    def make(self, env_spec):
        return OwnA2C(self, env_spec)


def test_its_gradients_can_be_computed_in_shares():
    agent = Tunable(OwnConfig(SMALL), RANGES).make(SPEC)
    agent.check_shares()
    assert has_one_gradient(agent)
    check_own_loss(agent, 5)
    recurrent = Tunable(R2D2Config(LSTM, burn_in=2, n_step=1), {"discount": (0.5, 0.9)}).make(SPEC)
    batch = random_batch(recurrent, 6, 8)
    assert recurrent.num_real(batch) == recurrent.agent.num_real(batch)
    several = Tunable(PPOConfig(SMALL), {"clip_ratio": (0.1, 0.3)}).make(SPEC)
    assert not has_one_gradient(several)
    with pytest.raises(ConfigError, match="PPO makes its updates itself"):
        several.check_shares()


def test_it_can_be_saved():
    config = Tunable(A2CConfig(SMALL), RANGES)
    assert decode(encode(config)) == config


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Tunable(A2CConfig(), {"network": (1, 2)}), "network is not a number that can"),
        (lambda: Tunable(A2CConfig(), {}), "at least one setting"),
        (lambda: Tunable(A2CConfig(), {"discount": (0.0, 0.9)}), "both above 0"),
        (lambda: Tunable(A2CConfig(), {"discount": (0.5, 1.5)}), "agent.discount: expected a num"),
        (lambda: Tunable("a2c", RANGES), "must be an algorithm's settings"),
        (
            lambda: Tunable(SACConfig(), {"initial_temperature": (0.1, 1.0)}),
            "SACConfig.initial_temperature cannot change while it learns: .* is learned",
        ),
        (
            lambda: Tunable(
                TD3Config(exploration=NoiseSchedule(end=0.0)), {"exploration_noise": (0.1, 1.0)}
            ),
            "TD3Config.exploration_noise cannot change while it learns: the schedule",
        ),
        (
            lambda: Tunable(DQNConfig(), {"value_max": (5.0, 20.0)}),
            "DQNConfig.value_max cannot change while it learns: without atoms nothing uses it",
        ),
        (
            lambda: Tunable(DQNConfig(num_atoms=5), {"value_max": (5.0, 20.0)}),
            "DQNConfig.value_max cannot change while it learns: the atoms stand for fixed",
        ),
        (
            lambda: Tunable(DQNConfig(num_atoms=5), {"huber_delta": (0.5, 2.0)}),
            "DQNConfig.huber_delta cannot change while it learns: with several atoms",
        ),
    ],
)
def test_what_cannot_change_is_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()
