"""A2C: the loss against NumPy, boundaries, one update a batch, settings, learning."""

import dataclasses
import threading

import jax
import numpy as np
import pytest
from dm_env import specs as dm_specs

from distrl import presets
from distrl.agents.a2c import A2CConfig
from distrl.agents.networks import NetworkConfig
from distrl.errors import ConfigError
from distrl.goal import Goal
from distrl.programs.single_process import single_process
from distrl.specs import EnvironmentSpec
from distrl.types import StepType

LAST = int(StepType.LAST)
KEY = np.array([0, 1], np.uint32)
SPEC = EnvironmentSpec(dm_specs.Array((4,), np.float32), dm_specs.DiscreteArray(3, np.int32))
SMALL = NetworkConfig(hidden_sizes=(16,))
LSTM = NetworkConfig(hidden_sizes=(16,), core="lstm", core_size=8)


def sharpened(params):
    """Parameters whose policy is far from uniform."""
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda x: x + rng.normal(size=x.shape).astype(np.float32), params)


def loss_by_hand(config, batch, logits, value, advantage):
    """The loss from the network's outputs [T + 1, B, ...] and the advantages; NaN: no transition.

    Also gives the three terms.
    """
    real = np.isfinite(advantage)
    logits = np.asarray(logits, np.float64)[:-1]
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    chosen = np.take_along_axis(log_probs, batch.action[:-1][..., None].astype(int), -1)[..., 0]
    weight = advantage[real]
    if config.normalize_advantages:
        weight = (weight - weight.mean()) / weight.std()
    policy_loss = -np.mean(chosen[real] * weight)
    value_loss = 0.5 * np.mean(advantage[real] ** 2)  # the target less the value is the advantage
    entropy = -np.sum(np.exp(log_probs) * log_probs, axis=-1)[real].mean()
    loss = policy_loss + config.baseline_cost * value_loss - config.entropy_cost * entropy
    return loss, policy_loss, value_loss, entropy


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"gae_lambda": 1.0, "entropy_cost": 0.5},
        {"normalize_advantages": True, "baseline_cost": 2.0},
        {"network": LSTM, "discount": 0.8},
    ],
)
def test_the_loss_equals_numpys(settings, on_policy_batch, gae_by_hand):
    agent = A2CConfig(**{"network": SMALL, **settings}).make(SPEC)
    params = agent.initial_params(KEY)
    batch = on_policy_batch(agent, params, batch_size=30)
    params = jax.tree.map(lambda x: x + 0.1, params)  # off policy: nothing corrects for it
    loss, logs = jax.jit(agent.loss)(params, batch)
    logits, value, _ = jax.jit(agent.network.unroll)(params, batch.timestep, batch.state)
    step_type, reward, discount = batch.timestep[:3]

    def want(discount):
        rows = (step_type, reward, discount, value)
        advantage = gae_by_hand(*rows, agent.config.discount, agent.config.gae_lambda)
        return loss_by_hand(agent.config, batch, logits, value, advantage)

    got = (loss, logs["policy_loss"], logs["value_loss"], logs["entropy"])
    np.testing.assert_allclose(got, want(discount), rtol=1e-4, atol=1e-5)
    no_limits = np.where(step_type == LAST, 0, discount)
    assert abs(float(logs["value_loss"]) - want(no_limits)[2]) > 1e-3


@pytest.mark.full
def test_the_loss_under_vmap_is_that_of_each_batch(on_policy_batch):
    agent = A2CConfig(network=SMALL).make(SPEC)
    params = agent.initial_params(KEY)
    batches = [on_policy_batch(agent, params, seed=seed) for seed in range(3)]
    stacked = jax.tree.map(lambda *x: np.stack(x), *batches)
    losses, _ = jax.jit(jax.vmap(agent.loss, (None, 0)))(params, stacked)
    one = jax.jit(agent.loss)
    np.testing.assert_allclose(losses, [one(params, b)[0] for b in batches], rtol=1e-4)


def test_a_stored_state_that_is_one_step_off_is_noticed(on_policy_batch):
    """On policy the behaviour's probabilities are the learner's own."""
    agent = A2CConfig(network=LSTM).make(SPEC)
    params = sharpened(agent.initial_params(KEY))
    batch = on_policy_batch(agent, params)
    loss = jax.jit(agent.loss)
    assert abs(float(loss(params, batch)[1]["kl_behaviour"])) < 1e-5
    now = jax.tree.map(lambda x: x[0], batch.timestep)
    _, _, later = agent.network.step(params, now, batch.state)
    shifted = batch._replace(state=later)
    assert abs(float(loss(params, shifted)[1]["kl_behaviour"])) > 1e-3


def test_what_lies_at_a_boundary_changes_no_gradient(on_policy_batch):
    agent = A2CConfig(network=SMALL, normalize_advantages=True).make(SPEC)
    params = agent.initial_params(KEY)
    batch = on_policy_batch(agent, params)
    gradients = jax.jit(agent.compute_gradients)
    before, _ = gradients(params, None, batch)
    last = batch.timestep.step_type == LAST
    reward, log_prob = batch.timestep.reward.copy(), batch.extras["log_prob"].copy()
    reward[1:][last[:-1]], log_prob[last] = 1e9, -np.inf
    changed = batch._replace(
        timestep=batch.timestep._replace(reward=reward),
        action=np.where(last, 0, batch.action),
        extras={"log_prob": log_prob},
    )
    after, logs = gradients(params, None, changed)
    jax.tree.map(np.testing.assert_array_equal, before, after)
    assert all(np.any(g) for g in jax.tree.leaves(before))
    assert all(np.isfinite(x) for x in logs.values())


def test_the_learner_step_is_composed_of_its_parts(on_policy_batch):
    agent = A2CConfig(network=SMALL, optimizer="adam").make(SPEC)
    params = agent.initial_params(KEY)
    batch, learner_state = on_policy_batch(agent, params), agent.initial_learner_state(params)
    whole, whole_state, _ = jax.jit(agent.learner_step)(params, learner_state, batch)
    grads, _ = jax.jit(agent.compute_gradients)(params, learner_state, batch)
    parts, opt_state, _ = jax.jit(agent.apply_gradients)(params, learner_state, grads)
    parts_state = agent.update_learner_state(parts, opt_state, learner_state)
    for x, y in zip(
        jax.tree.leaves((whole, whole_state)), jax.tree.leaves((parts, parts_state)), strict=True
    ):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)
    assert int(whole_state.updates) == 1


@pytest.mark.parametrize(
    "setting",
    [
        {"discount": 1.5},
        {"gae_lambda": -0.1},
        {"learning_rate": 0.0},
        {"entropy_cost": -1.0},
        {"baseline_cost": -0.1},
        {"max_gradient_norm": -40.0},
        {"anneal_updates": 0},
        {"optimizer": "momentum"},
        {"normalize_advantages": 1},
        {"network": "mlp"},
    ],
)
def test_settings_that_cannot_work_are_refused_in_one_line(setting):
    (field,) = setting
    with pytest.raises(ConfigError, match=f"agent.{field}: expected .* got") as error:
        A2CConfig(**setting)
    assert "\n" not in str(error.value)


def test_what_does_not_suit_is_refused():
    vector = SPEC._replace(reward=dm_specs.Array((2,), np.float32, "reward"))
    with pytest.raises(ConfigError, match=r"reward: A2C .* got shape \[2\]"):
        A2CConfig().make(vector)
    pytest.importorskip("envpool")
    experiment = presets.experiment("CartPole-v1", "a2c")
    uniform = dataclasses.replace(experiment.replay, table="uniform")
    with pytest.raises(ConfigError, match=r"replay.table=uniform .* A2C .* replay.table=queue"):
        dataclasses.replace(experiment, replay=uniform)


@pytest.mark.full
def test_learns_cartpole_a_little():
    """Random actions last for 22 steps."""
    pytest.importorskip("envpool")
    experiment = presets.experiment("CartPole-v1", "a2c")
    goal = Goal(mean_return=100, max_env_steps=100_000)
    ending = single_process(
        dataclasses.replace(experiment, goal=goal), stop=threading.Event(), printer=lambda _: None
    )
    assert ending is not None and ending[1], ending


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_solves_cartpole():
    pytest.importorskip("envpool")
    experiment = presets.experiment("CartPole-v1", "a2c")
    goal = Goal(mean_return=475, max_env_steps=1_000_000)
    ending = single_process(dataclasses.replace(experiment, goal=goal), stop=threading.Event())
    assert ending is not None and ending[1], ending
