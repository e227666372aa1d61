"""SAC: its losses against NumPy, where gradients go, the temperature, targets, boundaries."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from dm_env import specs as dm_specs

from distrl import specs
from distrl.agents.agent import PRIORITIES
from distrl.agents.sac import SACConfig
from distrl.errors import ConfigError
from distrl.learning.random_batches import random_batch
from distrl.random_keys import derive
from distrl.specs import EnvironmentSpec
from distrl.types import StepType
from tests.support.selection import full

LAST = int(StepType.LAST)
KEY = np.array([0, 1], np.uint32)
LOW, HIGH = np.array([-2.0, 0.0]), np.array([2.0, 10.0])
SPEC = EnvironmentSpec(
    dm_specs.Array((3,), np.float32), dm_specs.BoundedArray((2,), np.float32, LOW, HIGH)
)
SMALL = SACConfig(hidden_sizes=(16, 8), discount=0.9, initial_temperature=0.3)
B = 40


def mlp(params, name, x):
    """The network in NumPy: relu layers, then a linear one."""
    for layer in ("linear_0", "linear_1"):
        part = params[f"{name}torso/~/{layer}"]
        x = np.maximum(x @ np.asarray(part["w"], float) + np.asarray(part["b"], float), 0)
    (head,) = (v for k, v in params.items() if k.startswith(name) and k.endswith("_head"))
    return x @ np.asarray(head["w"], float) + np.asarray(head["b"], float)


def numpy_q(critics, observation, unit_action):
    x = np.concatenate([unit_action, observation], -1)
    return np.stack([mlp(critics, f"critic_{i}/", x)[..., 0] for i in (0, 1)], -1)


def numpy_sample(policy, observation, rng):
    """Actions in [-1, 1] and the logs of their densities there, by change of variables."""
    out = mlp(policy, "", np.asarray(observation, float))
    mean, std = out[..., :2], np.exp(np.clip(out[..., 2:], -20, 2))
    noise = np.asarray(jax.random.normal(rng, mean.shape), float)
    action = np.tanh(mean + std * noise)
    normal = np.exp(-(noise**2) / 2) / (std * np.sqrt(2 * np.pi))
    return action, np.log(normal / (1 - action**2)).sum(-1)


def make(config=SMALL, length=4, spread=1.0):
    """Agent, parameters that are far from their first ones, other target critics, and a batch."""
    agent = config.make(SPEC)
    params, other = (agent.initial_params(np.array([0, k], np.uint32)) for k in (1, 2))
    rng = np.random.default_rng(0)
    params["policy"] = jax.tree.map(
        lambda x: x + spread * 0.3 * rng.normal(size=x.shape).astype(np.float32), params["policy"]
    )
    return agent, params, other["critics"], random_batch(agent, length, B)


def numpy_losses(agent, params, target, batch, discount=None):
    """Critic, policy and temperature loss, and each transition's mean error: loops and NumPy."""
    step = batch.timestep
    discount = step.discount if discount is None else discount
    temperature = float(np.exp(params["log_temperature"]))
    now, then = derive(KEY, "now"), derive(KEY, "then")
    unit = (batch.action - (LOW + HIGH) / 2) / ((HIGH - LOW) / 2)
    next_action, next_log = numpy_sample(params["policy"], step.observation[1:], then)
    action, log_prob = numpy_sample(params["policy"], step.observation[:-1], now)
    next_q = numpy_q(target, step.observation[1:], next_action).min(-1)
    q = numpy_q(params["critics"], step.observation[:-1], unit[:-1])
    own_q = numpy_q(params["critics"], step.observation[:-1], action).min(-1)
    weight = (batch.probability / batch.probability.min()) ** -agent.config.importance_exponent
    critic, policy, heat = [], [], []
    errors = np.full(q.shape[:2], np.nan)
    for t in range(q.shape[0]):
        for b in range(B):
            if step.step_type[t, b] == LAST:
                continue
            y = step.reward[t + 1, b]
            if discount[t + 1, b]:
                y += 0.9 * (next_q[t, b] - temperature * next_log[t, b])
            critic.append(weight[b] * sum((y - q[t, b, i]) ** 2 for i in (0, 1)) / 2)
            errors[t, b] = np.abs(y - q[t, b]).mean()
            policy.append(temperature * log_prob[t, b] - own_q[t, b])
            heat.append(-temperature * (log_prob[t, b] + agent.target_entropy))
    return np.mean(critic), np.mean(policy), np.mean(heat), errors


@pytest.mark.parametrize(
    ("length", "prioritized"), [full(1, False), full(4, False), (1, True), (4, True)]
)
def test_the_loss_equals_numpys(length, prioritized):
    agent, params, target, batch = make(length=length)
    if prioritized:
        batch = batch._replace(probability=np.linspace(0.01, 0.05, B, dtype=np.float32))
    critic, policy, heat, errors = numpy_losses(agent, params, target, batch)
    loss, logs = jax.jit(agent.loss)(params, target, KEY, batch)
    np.testing.assert_allclose(logs["critic_loss"], critic, rtol=1e-4)
    np.testing.assert_allclose(logs["policy_loss"], policy, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(loss, critic + policy + heat, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(logs["td_error"], np.nanmean(errors), rtol=1e-4)
    errors = np.where(np.isnan(errors).all(0), 0, errors)
    want = 0.9 * np.nanmax(errors, 0) + 0.1 * np.nanmean(errors, 0)
    np.testing.assert_allclose(logs[PRIORITIES], want, rtol=1e-4, atol=1e-6)


def test_a_time_limit_bootstraps_and_a_true_end_does_not():
    agent, params, target, batch = make()
    right = numpy_losses(agent, params, target, batch)[0]
    step = batch.timestep
    into_last = (step.step_type[1:] == LAST) & (step.step_type[:-1] != LAST)
    assert {0, 1} == set(step.discount[1:][into_last])
    for wrong in (np.where(step.step_type == LAST, 0, 1), np.ones_like(step.discount)):
        mistaken = numpy_losses(agent, params, target, batch, wrong)[0]
        assert abs(mistaken - right) > 1e-3 * right
    # The true final observation is what the limit bootstraps from, and a true end's is not used.
    gradients = jax.jit(agent.compute_gradients)
    state = agent.initial_learner_state(params)._replace(target=target)
    before, _ = gradients(params, state, batch)
    for limit in (0, 1):
        ends = (step.step_type == LAST) & (step.discount == limit)
        ends[0] = False
        observation = np.where(ends[..., None], 5, step.observation).astype(np.float32)
        changed = batch._replace(timestep=step._replace(observation=observation))
        after, _ = gradients(params, state, changed)
        same = jax.tree.map(np.array_equal, before, after)
        assert all(jax.tree.leaves(same["policy"]))
        assert all(jax.tree.leaves(same["critics"])) == (limit == 0)


def test_what_lies_at_a_boundary_changes_no_gradient():
    agent, params, target, batch = make()
    state = agent.initial_learner_state(params)._replace(target=target)
    gradients = jax.jit(agent.compute_gradients)
    before, _ = gradients(params, state, batch)
    last = batch.timestep.step_type == LAST
    reward = batch.timestep.reward.copy()
    reward[1:][last[:-1]] = 1e9
    action = np.where(last[..., None], 0, batch.action).astype(np.float32)
    timestep = batch.timestep._replace(reward=reward)
    after, _ = gradients(params, state, batch._replace(timestep=timestep, action=action))
    jax.tree.map(np.testing.assert_array_equal, before, after)
    assert all(np.any(g) for g in jax.tree.leaves(before))
    nothing = np.full_like(batch.timestep.step_type, LAST)
    timestep = batch.timestep._replace(step_type=nothing)
    grads, logs = gradients(params, state, batch._replace(timestep=timestep))
    assert not any(np.any(g) for g in jax.tree.leaves(grads))
    assert all(np.all(np.isfinite(v)) for v in logs.values())


@pytest.mark.full
def test_each_loss_reaches_its_own_part_only():
    agent, params, target, batch = make()
    losses = ("critic_loss", "policy_loss")
    whole, _ = jax.jit(jax.grad(agent.loss, has_aux=True))(params, target, KEY, batch)

    def one(name):
        return jax.jit(jax.grad(lambda p, q: agent.loss(p, q, KEY, batch)[1][name], (0, 1)))(
            params, target
        )

    (of_critics, to_target), (of_policy, _) = map(one, losses)
    assert not any(np.any(g) for g in jax.tree.leaves(to_target))
    assert not any(np.any(g) for g in jax.tree.leaves(of_critics["policy"]))
    assert not any(np.any(g) for g in jax.tree.leaves(of_policy["critics"]))
    assert not np.any(of_critics["log_temperature"])
    assert not np.any(of_policy["log_temperature"])
    for name, alone in (("critics", of_critics), ("policy", of_policy)):
        jax.tree.map(
            lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6),
            whole[name],
            alone[name],
        )
    heat = numpy_losses(agent, params, target, batch)[2]  # it is its own derivative by the log
    np.testing.assert_allclose(whole["log_temperature"], heat, rtol=1e-4)


@pytest.mark.full
def test_the_policys_gradient_equals_finite_differences_of_numpys_loss():
    agent, params, target, batch = make()
    # Within the bounds of log_std: beyond them gradients that lead back are not the loss's.
    head = jax.tree.map(lambda leaf: 0.1 * leaf, params["policy"]["policy_head"])
    params = {**params, "policy": {**params["policy"], "policy_head": head}}
    grads, _ = jax.jit(jax.grad(agent.loss, has_aux=True))(params, target, KEY, batch)
    for name, index in (
        ("torso/~/linear_0", (0, 3)),
        ("policy_head", (2, 1)),
        ("policy_head", (5, 3)),
    ):
        values = []
        for step in (1e-5, -1e-5):
            policy = jax.tree.map(lambda x: np.array(x, float), params["policy"])
            policy[name]["w"][index] += step
            values.append(numpy_losses(agent, {**params, "policy": policy}, target, batch)[1])
        want = (values[0] - values[1]) / 2e-5
        np.testing.assert_allclose(grads["policy"][name]["w"][index], want, rtol=1e-2, atol=1e-5)


@pytest.mark.full
def test_under_vmap_over_batches_and_keys():
    agent, params, target, _ = make()
    batches = [random_batch(agent, 3, B, seed) for seed in range(3)]
    keys = jnp.stack([jax.random.PRNGKey(k) for k in range(3)])
    stacked = jax.tree.map(lambda *x: np.stack(x), *batches)
    mapped = jax.jit(jax.vmap(agent.loss, (None, None, 0, 0)))(params, target, keys, stacked)[0]
    single = [agent.loss(params, target, k, b)[0] for k, b in zip(keys, batches)]
    np.testing.assert_allclose(mapped, single, rtol=1e-5)


def learn(agent, params, batch, updates):
    """Parameters and learner states, before the first update and after each."""
    step, state = jax.jit(agent.learner_step), agent.initial_learner_state(params)
    history = [(params, state)]
    for _ in range(updates):
        params, state, logs = step(params, state, batch)
        assert logs.pop(PRIORITIES).shape == (B,)
        assert all(np.shape(v) == () and np.isfinite(v) for v in logs.values())
        history.append((params, state))
    return history


def test_the_target_critics_are_a_moving_average():
    agent, params, _, batch = make(dataclasses.replace(SMALL, target_tau=0.25))
    history = learn(agent, params, batch, 3)
    want = params["critics"]
    keys = {tuple(np.asarray(history[0][1].key).tolist())}
    for after, state in history[1:]:
        want = jax.tree.map(lambda old, new: 0.75 * old + 0.25 * new, want, after["critics"])
        jax.tree.map(
            lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6), state.target, want
        )
        keys.add(tuple(np.asarray(state.key).tolist()))
    assert len(keys) == 4  # each update draws new noise
    other = agent.initial_params(np.array([0, 9], np.uint32))
    assert tuple(np.asarray(agent.initial_learner_state(other).key).tolist()) not in keys


@pytest.mark.full
@pytest.mark.parametrize("target_entropy", [-4.0, 1.38])
def test_the_temperature_moves_entropy_towards_its_target(target_entropy):
    agent, params, _, batch = make(
        dataclasses.replace(SMALL, target_entropy=target_entropy, learning_rate=3e-3), spread=0
    )
    history = learn(agent, params, batch, 150)
    first, last = (float(p["log_temperature"]) for p, _ in (history[0], history[-1]))
    assert (last > first) == (target_entropy > 0)
    assert abs(last - first) > 0.1
    assert SMALL.make(SPEC).target_entropy == -2


@pytest.mark.full
def test_it_climbs_a_hill():
    """Rewards of the action alone, of which -1 and 3 are the best, and true ends after each."""
    config = SACConfig((32, 32), learning_rate=3e-3, initial_temperature=0.02)
    agent = config.make(SPEC)
    params = agent.initial_params(KEY)
    rng, step = np.random.default_rng(0), jax.jit(agent.learner_step)
    state = agent.initial_learner_state(params)
    batch = random_batch(agent, 1, 128)
    kinds = np.array([[StepType.FIRST], [LAST]], np.int8) + np.zeros((2, 128), np.int8)
    for _ in range(300):
        action = rng.uniform(LOW, HIGH, (2, 128, 2)).astype(np.float32)
        gap = (action[0] - [-1, 3]) / [2, 5]
        reward = np.stack([np.zeros(128), -np.square(gap).sum(-1)]).astype(np.float32)
        timestep = batch.timestep._replace(
            step_type=kinds, discount=np.array([[1.0], [0.0]], "f4") + 0 * reward, reward=reward
        )
        params, state, _ = step(params, state, batch._replace(timestep=timestep, action=action))
    one = jax.tree.map(lambda x: x[0], batch.timestep)
    output, _ = agent.actor_step(KEY, params, one, (), evaluation=True)
    np.testing.assert_allclose(np.mean(output.action, 0), [-1, 3], atol=0.5)


def test_actions_lie_inside_the_bounds_and_evaluation_takes_the_middle():
    agent, params = make(spread=0)[:2]
    act = jax.jit(agent.actor_step, static_argnames="evaluation")
    timestep = specs.zeros(specs.timestep_struct(SPEC), 4000)
    output, state = act(KEY, params, timestep, ())
    assert state == () == output.extras
    specs.check(output.action, SPEC.action, (4000,), "action")
    action = np.asarray(output.action)
    assert (action >= LOW).all()
    assert (action <= HIGH).all()
    quarters = np.histogram(action[:, 1], 4, (0, 10))[0] / 4000
    assert (quarters > 0.15).all()  # wide at first: the warm-up
    mode, _ = act(KEY, params, timestep, (), evaluation=True)
    mean = mlp(params["policy"], "", np.zeros((1, 3)))[:, :2]
    want = (LOW + HIGH) / 2 + (HIGH - LOW) / 2 * np.tanh(mean)
    np.testing.assert_allclose(mode.action[:1], want, rtol=1e-4, atol=1e-5)


def test_actions_beyond_the_bounds_have_the_value_of_the_bounds():
    agent, params = make()[:2]
    middle, half = (LOW + HIGH) / 2, (HIGH - LOW) / 2
    actions = np.stack([middle + share * half for share in (0, 0.5, 1, 2)]).astype(np.float32)
    observations = np.zeros((4, *SPEC.observation.shape), np.float32)
    values = np.asarray(agent.critics.apply(params["critics"], observations, actions))
    np.testing.assert_array_equal(values[2], values[3])
    assert len(np.unique(values[:3, 0])) == 3


def test_the_gradient_norm_covers_all_parameters():
    agent, params, _, _ = make()
    state = agent.initial_learner_state(params)
    apply = jax.jit(agent.apply_gradients)
    for part in params:
        grads = jax.tree.map(jnp.zeros_like, params)
        grads[part] = jax.tree.map(lambda x: jnp.full_like(x, jnp.nan), grads[part])
        assert np.isnan(apply(params, state, grads)[2]["gradient_norm"]), part


@pytest.mark.full
def test_the_learner_step_is_composed_of_its_parts():
    agent, params, target, batch = make()
    state = agent.initial_learner_state(params)._replace(target=target)
    whole = jax.jit(agent.learner_step)(params, state, batch)[:2]
    grads, _ = jax.jit(agent.compute_gradients)(params, state, batch)
    assert jax.tree.structure(grads) == jax.tree.structure(params)
    after, opt_state, _ = jax.jit(agent.apply_gradients)(params, state, grads)
    parts = after, agent.update_learner_state(after, opt_state, state)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5), whole, parts)
    assert float(optax.tree.norm(grads)) > 0


@pytest.mark.parametrize(
    "setting",
    [
        {"hidden_sizes": (16, 0)},
        {"hidden_sizes": 16},
        {"activation": "gelu"},
        {"discount": 1.5},
        {"learning_rate": 0.0},
        {"target_tau": 0.0},
        {"initial_temperature": 0.0},
        {"target_entropy": float("nan")},
        {"importance_exponent": -0.1},
    ],
)
def test_settings_that_cannot_work_are_refused_in_one_line(setting):
    (field,) = setting
    with pytest.raises(ConfigError, match=rf"agent\.{field}: expected .* got") as error:
        SACConfig(**setting)
    assert "\n" not in str(error.value)


def test_environments_that_do_not_suit_are_refused():
    discrete = SPEC._replace(action=dm_specs.DiscreteArray(3, np.int32))
    with pytest.raises(
        ConfigError, match=r"action: SAC takes one BoundedArray of floats, got.*take impala or ppo"
    ):
        SACConfig().make(discrete)
    vector = SPEC._replace(reward=dm_specs.Array((2,), np.float32, "reward"))
    with pytest.raises(ConfigError, match=r"reward: SAC .* got shape \[2\]"):
        SACConfig().make(vector)
    volume = SPEC._replace(observation=dm_specs.Array((3, 8, 8, 8), np.float32))
    with pytest.raises(ConfigError, match="a network takes numbers, vectors, matrices and images"):
        SACConfig().make(volume)
    unbounded = SPEC._replace(action=dm_specs.BoundedArray((1,), np.float32, -np.inf, np.inf))
    with pytest.raises(ConfigError, match="finite bounds"):
        SACConfig().make(unbounded)
