"""DDPG: TD3 without its additions. Targets by hand, and it climbs a hill; see test_td3."""

import jax
import numpy as np
import pytest
from dm_env import specs as dm_specs

from distrl import presets
from distrl.agents.ddpg import DDPGConfig
from distrl.agents.td3 import TD3Config
from distrl.errors import ConfigError
from distrl.learning.random_batches import random_batch
from distrl.specs import EnvironmentSpec
from distrl.types import StepType

FIRST, MID, LAST = int(StepType.FIRST), int(StepType.MID), int(StepType.LAST)
KEY = np.array([0, 1], np.uint32)
SPEC = EnvironmentSpec(
    dm_specs.Array((3,), np.float32), dm_specs.BoundedArray((1,), np.float32, -2.0, 4.0)
)


def constant(params, value):
    """Networks whose outputs are `value`, whatever comes in."""
    zeros = jax.tree.map(np.zeros_like, params)
    head = {
        name: {**part, "b": np.full_like(part["b"], value)}
        for name, part in zeros.items()
        if name.endswith("_head")
    }
    return {**zeros, **head}


def test_targets_by_hand_into_a_limit_a_true_end_and_the_edge():
    agent = DDPGConfig(hidden_sizes=(8,), discount=0.5).make(SPEC)
    params = agent.initial_params(KEY)
    #        F, M, limit, F, true end, F, M
    kinds = np.array([FIRST, MID, LAST, FIRST, LAST, FIRST, MID], np.int8)[:, None]
    reward = np.array([0, 1, 2, 0, 3, 0, 4], np.float32)[:, None]
    discount = np.array([1, 1, 1, 1, 0, 1, 1], np.float32)[:, None]
    batch = random_batch(agent, 6, 1)
    timestep = batch.timestep._replace(step_type=kinds, reward=reward, discount=discount)
    target = {"policy": params["policy"], "critics": constant(params["critics"], 10.0)}
    critics = constant(params["critics"], 1.0)
    loss, logs = jax.jit(agent.critic_loss)(critics, target, KEY, batch._replace(timestep=timestep))
    targets = np.array([1 + 5, 2 + 5, 3, 4 + 5], float)
    np.testing.assert_allclose(logs["target"], targets.mean(), rtol=1e-6)
    np.testing.assert_allclose(loss, 0.5 * np.square(targets - 1).mean(), rtol=1e-6)
    np.testing.assert_allclose(logs["real_fraction"], 4 / 6, rtol=1e-6)


def test_the_target_action_is_the_target_policys_own():
    agent = DDPGConfig(hidden_sizes=(8,)).make(SPEC)
    params, other = (agent.initial_params(np.array([0, k], np.uint32)) for k in (1, 2))
    target = {"policy": other["policy"], "critics": other["critics"]}
    batch = random_batch(agent, 1, 30)
    step = batch.timestep
    loss = jax.jit(agent.critic_loss)
    values = [loss(params["critics"], target, k, batch)[0] for k in (KEY, KEY + 1)]
    assert values[0] == values[1]  # no noise
    action = 1 + 3 * np.tanh(agent.policy.apply(other["policy"], step.observation[1]))
    value = agent.critics.apply(other["critics"], step.observation[1], action)
    assert value.shape == (30, 1)
    q = agent.critics.apply(params["critics"], step.observation[0], batch.action[0])[:, 0]
    error = step.reward[1] + 0.99 * step.discount[1] * value[:, 0] - q
    real = step.step_type[0] != LAST
    want = 0.5 * np.square(np.asarray(error))[real].mean()
    np.testing.assert_allclose(values[0], want, rtol=1e-4)


@pytest.mark.full
@pytest.mark.parametrize("config", [DDPGConfig, TD3Config])
def test_it_climbs_a_hill(config):
    """Rewards of the action alone, of which 2 is the best, and true ends after each."""
    agent = config((32, 32), policy_learning_rate=5e-4, critic_learning_rate=3e-3).make(SPEC)
    params = agent.initial_params(KEY)
    rng, step = np.random.default_rng(0), jax.jit(agent.learner_step)
    state = agent.initial_learner_state(params)
    batch = random_batch(agent, 1, 64)
    kinds = np.array([[FIRST], [LAST]], np.int8) + np.zeros((2, 64), np.int8)
    for _ in range(400):
        action = rng.uniform(-2, 4, (2, 64, 1)).astype(np.float32)
        reward = np.stack([np.zeros(64), -np.square((action[0, :, 0] - 2) / 3)]).astype("f4")
        discount = np.array([[1.0], [0.0]], "f4") + 0 * reward
        timestep = batch.timestep._replace(step_type=kinds, discount=discount, reward=reward)
        before = params
        params, state, _ = step(params, state, batch._replace(timestep=timestep, action=action))
        if config is DDPGConfig:  # in every update
            assert not np.array_equal(
                before["policy"]["policy_head"]["b"], params["policy"]["policy_head"]["b"]
            )
    one = jax.tree.map(lambda x: x[0], batch.timestep)
    output, _ = agent.actor_step(KEY, params, one, (), evaluation=True)
    np.testing.assert_allclose(np.mean(output.action), 2, atol=0.5)


def test_what_cannot_work_is_refused():
    for field, value in (("target_tau", 0.0), ("exploration_noise", -1.0), ("hidden_sizes", 8)):
        with pytest.raises(ConfigError, match=rf"agent\.{field}: expected .* got"):
            DDPGConfig(**{field: value})
    discrete = SPEC._replace(action=dm_specs.DiscreteArray(3, np.int32))
    with pytest.raises(
        ConfigError, match=r"action: DDPG takes one BoundedArray of floats, got.*take impala or ppo"
    ):
        DDPGConfig().make(discrete)


@pytest.mark.parametrize("agent", ["sac", "td3", "ddpg"])
def test_presets_update_once_for_each_environment_step(agent):
    pytest.importorskip("envpool")
    experiment = presets.experiment("Pendulum-v1", agent)
    assert experiment.replay.samples_per_insert == experiment.learner.batch_size
    assert experiment.replay.unroll_length == 1
    with pytest.raises(ConfigError, match=f"action: {agent.upper()} takes one BoundedArray"):
        presets.experiment("CartPole-v1", agent)
