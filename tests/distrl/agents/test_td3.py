"""TD3: its losses against NumPy, the delay, target noise, exploration, boundaries."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs as dm_specs

from distrl import specs
from distrl.agents.action_noise import noisy_action
from distrl.agents.agent import PRIORITIES
from distrl.agents.components import ComponentConfig
from distrl.agents.exploration import EpsilonSchedule
from distrl.agents.td3 import TD3Config
from distrl.errors import ConfigError
from distrl.learning.random_batches import random_batch
from distrl.random_keys import derive
from distrl.specs import EnvironmentSpec
from distrl.types import StepType

LAST = int(StepType.LAST)
KEY = np.array([0, 1], np.uint32)
LOW, HIGH = np.array([-2.0, 0.0]), np.array([2.0, 10.0])
SPEC = EnvironmentSpec(
    dm_specs.Array((3,), np.float32), dm_specs.BoundedArray((2,), np.float32, LOW, HIGH)
)
SMALL = TD3Config(hidden_sizes=(16, 8), discount=0.9, target_noise=0.5, target_noise_clip=0.6)
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


def make(config=SMALL, length=4):
    """Agent, parameters and a learner state with other targets, both grown, and a batch."""
    agent = config.make(SPEC)
    rng = np.random.default_rng(0)
    params, other = (agent.initial_params(np.array([0, k], np.uint32)) for k in (1, 2))
    for one in (params, other):
        one["policy"] = jax.tree.map(
            lambda x: x + 0.3 * rng.normal(size=x.shape).astype(np.float32), one["policy"]
        )
    target = {name: other[name] for name in ("policy", "critics")}
    state = agent.initial_learner_state(params)._replace(target=target)
    return agent, params, state, random_batch(agent, length, B)


def numpy_losses(agent, params, target, batch, discount=None):
    """The critics' and the policy's loss, and each transition's mean error."""
    step, config = batch.timestep, agent.config
    discount = step.discount if discount is None else discount
    unit = (batch.action - (LOW + HIGH) / 2) / ((HIGH - LOW) / 2)
    aim = np.tanh(mlp(target["policy"], "", step.observation[1:]))
    noise = config.target_noise * np.asarray(jax.random.normal(KEY, aim.shape), float)
    noise = np.clip(noise, -config.target_noise_clip, config.target_noise_clip)
    next_q = numpy_q(target["critics"], step.observation[1:], np.clip(aim + noise, -1, 1)).min(-1)
    q = numpy_q(params["critics"], step.observation[:-1], unit[:-1])
    action = np.tanh(mlp(params["policy"], "", step.observation[:-1]))
    own_q = numpy_q(params["critics"], step.observation[:-1], action)[..., 0]
    weight = (batch.probability / batch.probability.min()) ** -config.importance_exponent
    critic, policy = [], []
    errors = np.full(q.shape[:2], np.nan)
    for t in range(q.shape[0]):
        for b in range(B):
            if step.step_type[t, b] == LAST:
                continue
            y = step.reward[t + 1, b] + (0.9 * next_q[t, b] if discount[t + 1, b] else 0)
            critic.append(weight[b] * sum((y - q[t, b, i]) ** 2 for i in (0, 1)) / 2)
            errors[t, b] = np.abs(y - q[t, b]).mean()
            policy.append(-own_q[t, b])
    return np.mean(critic), np.mean(policy), errors


@pytest.mark.parametrize("length", [1, 4])
def test_the_losses_equal_numpys(length):
    agent, params, state, batch = make(length=length)
    batch = batch._replace(probability=np.linspace(0.01, 0.05, B, dtype=np.float32))
    critic, policy, errors = numpy_losses(agent, params, state.target, batch)
    loss, logs = jax.jit(agent.critic_loss)(params["critics"], state.target, KEY, batch)
    np.testing.assert_allclose(loss, critic, rtol=1e-4)
    np.testing.assert_allclose(logs["td_error"], np.nanmean(errors), rtol=1e-4)
    got = jax.jit(agent.policy_loss)(params["policy"], params["critics"], batch)
    np.testing.assert_allclose(got, policy, rtol=1e-4, atol=1e-5)
    errors = np.where(np.isnan(errors).all(0), 0, errors)
    want = 0.9 * np.nanmax(errors, 0) + 0.1 * np.nanmean(errors, 0)
    np.testing.assert_allclose(logs[PRIORITIES], want, rtol=1e-4, atol=1e-6)


def test_the_policy_learns_from_the_first_critic_alone():
    agent, params, _, batch = make()
    bad = {
        name: jax.tree.map(lambda x: x * np.nan, part) if "critic_1" in name else part
        for name, part in params["critics"].items()
    }
    assert any(np.isnan(leaf).all() for leaf in jax.tree.leaves(bad))
    grads = jax.jit(jax.grad(agent.policy_loss))(params["policy"], bad, batch)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(grads))


def test_a_time_limit_bootstraps_and_a_true_end_does_not():
    agent, params, state, batch = make()
    right = numpy_losses(agent, params, state.target, batch)[0]
    step = batch.timestep
    into_last = (step.step_type[1:] == LAST) & (step.step_type[:-1] != LAST)
    assert {0, 1} == set(step.discount[1:][into_last])
    for wrong in (np.where(step.step_type == LAST, 0, 1), np.ones_like(step.discount)):
        mistaken = numpy_losses(agent, params, state.target, batch, wrong)[0]
        assert abs(mistaken - right) > 1e-3 * right
    gradients = jax.jit(jax.grad(agent.critic_loss, has_aux=True))
    before, _ = gradients(params["critics"], state.target, KEY, batch)
    for limit in (0, 1):  # the true final observations: used at a limit, and at no true end
        ends = (step.step_type == LAST) & (step.discount == limit)
        ends[0] = False
        observation = np.where(ends[..., None], 5, step.observation).astype(np.float32)
        changed = batch._replace(timestep=step._replace(observation=observation))
        after, _ = gradients(params["critics"], state.target, KEY, changed)
        same = all(jax.tree.leaves(jax.tree.map(np.array_equal, before, after)))
        assert same == (limit == 0)


def test_what_lies_at_a_boundary_changes_no_gradient():
    agent, params, state, batch = make(dataclasses.replace(SMALL, policy_delay=1))
    gradients = jax.jit(agent.compute_gradients)
    before, _ = gradients(params, state, batch)
    last = batch.timestep.step_type == LAST
    reward = batch.timestep.reward.copy()
    reward[1:][last[:-1]] = 1e9
    action = np.where(last[..., None], 0, batch.action).astype(np.float32)
    timestep = batch.timestep._replace(reward=reward)
    after, _ = gradients(params, state, batch._replace(timestep=timestep, action=action))
    jax.tree.map(np.testing.assert_array_equal, before, after)
    assert not np.any(before["epsilon"])
    networks = (before["policy"], before["critics"])
    assert all(np.any(g) for g in jax.tree.leaves(networks))
    nothing = np.full_like(batch.timestep.step_type, LAST)
    timestep = batch.timestep._replace(step_type=nothing)
    grads, logs = gradients(params, state, batch._replace(timestep=timestep))
    assert not any(np.any(g) for g in jax.tree.leaves(grads))
    assert all(np.all(np.isfinite(v)) for v in logs.values())


def test_gradients_reach_their_own_networks_only():
    agent, params, state, batch = make(dataclasses.replace(SMALL, policy_delay=1))
    grads, _ = jax.jit(agent.compute_gradients)(params, state._replace(key=KEY), batch)
    critics = jax.jit(jax.grad(agent.critic_loss, has_aux=True))
    alone, _ = critics(params["critics"], state.target, derive(KEY, "noise"), batch)
    compare = lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6)  # noqa: E731
    jax.tree.map(compare, grads["critics"], alone)  # nothing of the policy's loss
    # The policy's, by finite differences of NumPy's loss with the critics held.
    for name, index in (("torso/~/linear_0", (0, 3)), ("policy_head", (2, 1))):
        values = []
        for step in (1e-5, -1e-5):
            policy = jax.tree.map(lambda x: np.array(x, float), params["policy"])
            policy[name]["w"][index] += step
            moved = {**params, "policy": policy}
            values.append(numpy_losses(agent, moved, state.target, batch)[1])
        want = (values[0] - values[1]) / 2e-5
        np.testing.assert_allclose(grads["policy"][name]["w"][index], want, rtol=1e-2, atol=1e-5)


@pytest.mark.full
def test_under_vmap_over_batches_and_keys():
    agent, params, state, _ = make()
    batches = [random_batch(agent, 3, B, seed) for seed in range(3)]
    keys = jnp.stack([jax.random.PRNGKey(k) for k in range(3)])
    stacked = jax.tree.map(lambda *x: np.stack(x), *batches)
    states = [state._replace(key=k, updates=jnp.int32(k[1])) for k in keys]
    mapped, _ = jax.jit(jax.vmap(agent.compute_gradients, (None, 0, 0)))(
        params, jax.tree.map(lambda *x: jnp.stack(x), *states), stacked
    )
    for i, (one, batch) in enumerate(zip(states, batches)):
        single, _ = jax.jit(agent.compute_gradients)(params, one, batch)
        jax.tree.map(
            lambda x, y, i=i: np.testing.assert_allclose(x[i], y, rtol=1e-4, atol=1e-6),
            mapped,
            single,
        )


def same(one, two):
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(one), jax.tree.leaves(two)))


def learn(agent, params, state, batch, updates):
    """Parameters and learner states, before the first update and after each."""
    step, history = jax.jit(agent.learner_step), [(params, state)]
    for _ in range(updates):
        params, state, logs = step(params, state, batch)
        assert logs.pop(PRIORITIES).shape == (B,)
        assert all(np.shape(v) == () and np.isfinite(v) for v in logs.values())
        history.append((params, state))
    return history


def test_policy_and_targets_move_at_their_delay_only():
    agent, params, state, batch = make(dataclasses.replace(SMALL, policy_delay=3, target_tau=0.25))
    history = learn(agent, params, state, batch, 7)
    want = state.target
    for update in range(1, 8):
        (before, old), (after, new) = history[update - 1 : update + 1]
        assert not same(before["critics"], after["critics"])
        assert not np.array_equal(old.key, new.key)
        due = update % 3 == 0
        assert same(before["policy"], after["policy"]) == (not due)
        assert same(old.opt_state["policy"], new.opt_state["policy"]) == (not due)
        assert same(old.target, new.target) == (not due)
        if due:
            networks = {name: after[name] for name in want}
            want = jax.tree.map(lambda x, y: 0.75 * x + 0.25 * y, want, networks)
            jax.tree.map(
                lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6),
                new.target,
                want,
            )
    assert int(history[-1][1].updates) == 7


@pytest.mark.parametrize("updates", [8, 9, 1])
@pytest.mark.parametrize("each", [False, True])
def test_rates_fall_within_the_learners_updates_the_agents_and_each_components(updates, each):
    names = ("policy", "critics") if each else ()
    settings = {name: ComponentConfig(anneal_updates=updates) for name in names}
    config = dataclasses.replace(SMALL, policy_delay=3, components=settings or None)
    agent, params, state, batch = make(
        config if each else dataclasses.replace(config, anneal_updates=updates)
    )
    step = jax.jit(agent.learner_step)
    changed = {"policy": [], "critics": []}
    for update in range(1, 13):
        after, state, _ = step(params, state, batch)
        for name, made in changed.items():
            if not jax.tree.all(jax.tree.map(np.array_equal, params[name], after[name])):
                made.append(update)
        params = after
    of_policy = {8: [3, 6], 9: [3, 6, 9], 1: [3]}  # and not forever if the delay is longer
    assert changed == {"policy": of_policy[updates], "critics": [*range(1, updates + 1)]}


def test_after_2_to_the_31_updates_the_delay_is_kept_and_actions_are_the_policys():
    agent, params, state, batch = make(dataclasses.replace(SMALL, policy_delay=3))
    last = 2**31 - 1
    history = learn(agent, params, state._replace(updates=np.int32(last - 2)), batch, 6)
    moved = [not same(a["policy"], b["policy"]) for (a, _), (b, _) in itertools.pairwise(history)]
    assert moved == [number % 3 == 0 for number in range(last - 1, last + 5)]
    assert all(float(after["epsilon"]) == 0 for after, _ in history[1:])


def test_noise_of_actions_by_its_share_and_width():
    action = np.tile(np.array([0.5, -0.95], np.float32), (20_000, 1))
    noisy = np.asarray(jax.jit(noisy_action)(KEY, action, 0.1, 0.0))
    assert (np.abs(noisy) <= 1).all()
    np.testing.assert_allclose(noisy[:, 0].mean(), 0.5, atol=0.005)
    np.testing.assert_allclose(noisy[:, 0].std(), 0.1, atol=0.003)
    assert (noisy[:, 1] == -1).mean() == pytest.approx(0.309, abs=0.01)  # half a deviation off
    np.testing.assert_array_equal(noisy_action(KEY, action, 0.0, 0.0), action)
    uniform = np.asarray(noisy_action(KEY, action, 0.1, 1.0))
    quarters = np.histogram(uniform, 4, (-1, 1))[0] / uniform.size
    np.testing.assert_allclose(quarters, 0.25, atol=0.01)
    some = np.asarray(noisy_action(KEY, action, 0.0, 0.3))
    assert (some == action).all(-1).mean() == pytest.approx(0.7, abs=0.01)
    each = np.asarray(noisy_action(KEY, action, 0.0, np.repeat([0.0, 1.0], 10_000)))
    np.testing.assert_array_equal((each == action).all(-1), np.arange(20_000) < 10_000)


def test_actors_begin_at_random_and_evaluation_has_no_noise():
    agent, params, _, _ = make()
    act = jax.jit(agent.actor_step, static_argnames="evaluation")
    timestep = specs.zeros(specs.timestep_struct(SPEC), 4000)
    output, state = act(KEY, params, timestep, ())
    assert state == () == output.extras
    specs.check(output.action, SPEC.action, (4000,), "action")
    quarters = np.histogram(np.asarray(output.action)[:, 1], 4, (0, 10))[0] / 4000
    np.testing.assert_allclose(quarters, 0.25, atol=0.03)
    want = (LOW + HIGH) / 2 + (HIGH - LOW) / 2 * np.tanh(mlp(params["policy"], "", np.zeros(3)))
    mode, _ = act(KEY, params, timestep, (), evaluation=True)
    np.testing.assert_allclose(mode.action, np.tile(want, (4000, 1)), rtol=1e-4, atol=1e-5)
    output, _ = act(KEY, {**params, "epsilon": np.float32(0)}, timestep, ())
    noise = (np.asarray(output.action) - want) / ((HIGH - LOW) / 2)
    assert 0 < np.abs(noise).max() < 0.6


@pytest.mark.full
def test_random_actions_end_with_the_first_update():
    agent, params, state, batch = make()
    assert [float(p["epsilon"]) for p, _ in learn(agent, params, state, batch, 2)] == [1, 0, 0]
    config = dataclasses.replace(SMALL, epsilon=EpsilonSchedule(0.5, 0.1, 4))
    agent, params, state, batch = make(config)
    got = [float(p["epsilon"]) for p, _ in learn(agent, params, state, batch, 5)]
    np.testing.assert_allclose(got, [0.5, 0.4, 0.3, 0.2, 0.1, 0.1], rtol=1e-5)


@pytest.mark.full
def test_the_learner_step_is_composed_of_its_parts():
    agent, params, state, batch = make()
    whole = jax.jit(agent.learner_step)(params, state, batch)[:2]
    grads, _ = jax.jit(agent.compute_gradients)(params, state, batch)
    assert jax.tree.structure(grads) == jax.tree.structure(params)
    after, opt_state, _ = jax.jit(agent.apply_gradients)(params, state, grads)
    parts = after, agent.update_learner_state(after, opt_state, state)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5), whole, parts)


@pytest.mark.parametrize(
    "setting",
    [
        {"hidden_sizes": (16, 1.5)},
        {"activation": "gelu"},
        {"discount": -0.1},
        {"policy_learning_rate": 0.0},
        {"critic_learning_rate": -1.0},
        {"num_critics": 0},
        {"policy_delay": 0},
        {"target_tau": 1.1},
        {"target_noise": -0.1},
        {"target_noise_clip": -0.1},
        {"exploration_noise": -0.1},
        {"epsilon": 0.1},
        {"importance_exponent": -0.1},
    ],
)
def test_settings_that_cannot_work_are_refused_in_one_line(setting):
    (field,) = setting
    with pytest.raises(ConfigError, match=rf"agent\.{field}: expected .* got") as error:
        TD3Config(**setting)
    assert "\n" not in str(error.value)


def test_environments_that_do_not_suit_are_refused():
    discrete = SPEC._replace(action=dm_specs.DiscreteArray(3, np.int32))
    with pytest.raises(
        ConfigError, match=r"action: TD3 takes one BoundedArray of floats, got.*take impala or ppo"
    ):
        TD3Config().make(discrete)
    vector = SPEC._replace(reward=dm_specs.Array((2,), np.float32, "reward"))
    with pytest.raises(ConfigError, match=r"reward: TD3 .* got shape \[2\]"):
        TD3Config().make(vector)


def test_the_gradient_norm_covers_the_policy():
    agent, params, state, _ = make(dataclasses.replace(SMALL, policy_delay=1))
    grads = jax.tree.map(jnp.zeros_like, params)
    grads["policy"] = jax.tree.map(lambda x: jnp.full_like(x, jnp.nan), grads["policy"])
    _, _, logs = jax.jit(agent.apply_gradients)(params, state, grads)
    assert np.isnan(logs["gradient_norm"])
