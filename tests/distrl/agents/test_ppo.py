"""PPO: the loss against NumPy, passes over a batch, boundaries, stored states, learning."""

import dataclasses
import functools
import threading

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from dm_env import specs as dm_specs

from distrl import presets, specs
from distrl.agents.components import ComponentConfig
from distrl.agents.losses.surrogate import clipped_surrogate
from distrl.agents.networks import NetworkConfig
from distrl.agents.ppo import PPO, PPOConfig
from distrl.errors import ConfigError, SpecError
from distrl.goal import Goal
from distrl.programs.single_process import single_process
from distrl.specs import EnvironmentSpec
from distrl.transforms import statistics
from distrl.transforms.agent import TransformedAgent
from distrl.transforms.observations import ObservationNormalizer
from distrl.transforms.rewards import RewardNormalizer
from distrl.types import StepType, Trajectory
from tests.support.selection import full

LAST = int(StepType.LAST)
KEY = np.array([0, 1], np.uint32)
DISCRETE = EnvironmentSpec(dm_specs.Array((4,), np.float32), dm_specs.DiscreteArray(3, np.int32))
CONTINUOUS = EnvironmentSpec(
    dm_specs.Array((5,), np.float32), dm_specs.BoundedArray((2,), np.float32, -3.0, 1.0)
)
SMALL = NetworkConfig(hidden_sizes=(16,))
LSTM = NetworkConfig(hidden_sizes=(16,), core="lstm", core_size=8)
# Of batches [7, 8]: 6 x 8 transitions.
LENGTH, UNROLLS = 6, 8


def moved(params, size=0.1, seed=0):
    """Parameters some way off: ratios are not 1, and some are beyond their clip."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda x: np.asarray(x + size * rng.normal(size=x.shape), np.float32), params
    )


def make(on_policy_batch, env_spec=DISCRETE, agent_class=PPO, **settings):
    """An agent, parameters, and a batch of theirs."""
    config = PPOConfig(**{"network": SMALL, **settings})
    start = _start(on_policy_batch, env_spec is DISCRETE, config.network)
    return agent_class(config, env_spec), *start


@functools.cache
def _start(on_policy_batch, is_discrete, network):
    agent = PPOConfig(network=network).make(DISCRETE if is_discrete else CONTINUOUS)
    params = moved(agent.initial_params(KEY), 0.3, seed=1)
    return params, on_policy_batch(agent, params, LENGTH, UNROLLS)


def log_prob_and_entropy(policy, action):
    """float64 [T, B], of logits or of the parameters of a Normal over [-3, 1]."""
    if hasattr(policy, "log_std"):
        mean, log_std = (np.asarray(x, np.float64) for x in policy)
        z = ((np.asarray(action, np.float64) + 1) / 2 - mean) / np.exp(log_std)
        density = -0.5 * z**2 - log_std - 0.5 * np.log(2 * np.pi) - np.log(2)
        entropy = log_std + 0.5 * np.log(2 * np.pi * np.e) + np.log(2)
        return density.sum(-1), entropy.sum(-1)
    logits = np.asarray(policy, np.float64)
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    chosen = np.take_along_axis(log_probs, np.asarray(action)[..., None].astype(int), -1)
    return chosen[..., 0], -np.sum(np.exp(log_probs) * log_probs, axis=-1)


@pytest.mark.parametrize(
    ("env_spec", "settings"),
    [
        (DISCRETE, {}),
        full(DISCRETE, {"clip_value": 0.1, "gae_lambda": 0.7}),
        (DISCRETE, {"network": LSTM, "normalize_advantages": False}),
        full(CONTINUOUS, {"clip_ratio": 0.1, "baseline_cost": 2.0, "entropy_cost": 0.3}),
        (CONTINUOUS, {"network": LSTM, "clip_value": 0.05, "discount": 0.8}),
    ],
)
def test_the_loss_equals_numpys(env_spec, settings, on_policy_batch, gae_by_hand):
    agent, params, batch = make(on_policy_batch, env_spec, **settings)
    config, clip = agent.config, agent.config.clip_ratio
    unroll = jax.jit(agent.network.unroll)
    _, old_value, _ = unroll(params, batch.timestep, batch.state)
    old_value = np.asarray(old_value, np.float64)
    prepared = jax.jit(agent.prepare)(params, batch)
    new = moved(params, 0.25)
    loss, logs = jax.jit(agent.loss)(new, prepared)

    policy, value, _ = unroll(new, batch.timestep, batch.state)
    policy, value = jax.tree.map(lambda x: np.asarray(x)[:-1], (policy, value))
    log_prob, entropy = log_prob_and_entropy(policy, batch.action[:-1])
    step_type, reward, discount = batch.timestep[:3]

    def want(discount):
        rows = (step_type, reward, discount, old_value)
        advantage = gae_by_hand(*rows, config.discount, config.gae_lambda)
        real = np.isfinite(advantage)
        target, weight = (advantage + old_value[:-1])[real], advantage[real]
        if config.normalize_advantages:
            weight = (weight - weight.mean()) / weight.std()
        ratio = np.exp(log_prob - batch.extras["log_prob"][:-1])[real]
        gains = [
            min(r * a, (1 + clip) * a) if a > 0 else min(r * a, (1 - clip) * a)
            for r, a in zip(ratio, weight, strict=True)
        ]
        errors = []
        for now, before, goal in zip(value[real], old_value[:-1][real], target, strict=True):
            errors.append((now - goal) ** 2)
            if config.clip_value is not None:
                near = min(max(now, before - config.clip_value), before + config.clip_value)
                errors[-1] = max(errors[-1], (near - goal) ** 2)
        policy_loss, value_loss = -np.mean(gains), np.mean(errors) / 2
        total = policy_loss + config.baseline_cost * value_loss
        return {
            "loss": total - config.entropy_cost * entropy[real].mean(),
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": entropy[real].mean(),
            "value": value[real].mean(),
            "advantage": advantage[real].mean(),
            "kl_behaviour": (ratio - 1 - np.log(ratio)).mean(),
            "clip_fraction": (np.abs(ratio - 1) > clip).mean(),
            "real_fraction": real.mean(),
        }

    expected = want(discount)
    assert expected.keys() == logs.keys() and loss == logs["loss"]
    for name, x in expected.items():
        np.testing.assert_allclose(logs[name], x, rtol=2e-4, atol=2e-5, err_msg=name)
    assert 0.05 < expected["clip_fraction"] < 0.95  # both sides of the clip are seen
    no_limits = want(np.where(step_type == LAST, 0, discount))
    assert abs(no_limits["value_loss"] - expected["value_loss"]) > 1e-3


def test_the_clipped_objective_by_hand_and_its_gradient():
    ratio = np.array([0.5, 0.5, 0.9, 0.9, 1.1, 1.1, 1.5, 1.5], np.float32)
    advantage = np.array([2, -2, 2, -2, 2, -2, 2, -2], np.float32)
    want = [1.0, -1.6, 1.8, -1.8, 2.2, -2.2, 2.4, -3.0]
    log_ratio = np.log(ratio)
    np.testing.assert_allclose(clipped_surrogate(log_ratio, advantage, 0.2), want, rtol=1e-6)
    total = lambda x: jnp.sum(clipped_surrogate(x, advantage, 0.2))  # noqa: E731
    # None beyond the clip where going further would pay; else ratio times advantage.
    slope = [1.0, 0.0, 1.8, -1.8, 2.2, -2.2, 0.0, -3.0]
    np.testing.assert_allclose(jax.jit(jax.grad(total))(log_ratio), slope, rtol=1e-5)


def test_what_is_prepared_equals_numpys(on_policy_batch, gae_by_hand):
    agent, params, batch = make(on_policy_batch, discount=0.9)
    prepared = jax.jit(agent.prepare)(params, batch)
    _, value, _ = jax.jit(agent.network.unroll)(params, batch.timestep, batch.state)
    rows = (batch.timestep.step_type, batch.timestep.reward, batch.timestep.discount, value)
    advantage = gae_by_hand(*rows, 0.9, 0.95)
    real = np.isfinite(advantage)
    extras = prepared.extras
    np.testing.assert_allclose(extras["value"], value[:-1], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        extras["target"][real], (advantage + value[:-1])[real], rtol=1e-4, atol=1e-5
    )
    spread = (advantage - advantage[real].mean()) / advantage[real].std()
    np.testing.assert_allclose(extras["advantage"][real], spread[real], rtol=1e-4, atol=1e-5)
    assert not np.any(extras["advantage"][~real])
    np.testing.assert_array_equal(extras["log_prob"], batch.extras["log_prob"][:-1])
    for before, after in zip(
        jax.tree.leaves((batch.timestep, batch.action, batch.version)),
        jax.tree.leaves((prepared.timestep, prepared.action, prepared.version)),
        strict=True,
    ):
        np.testing.assert_array_equal(before[:-1], after)


def test_extras_of_ones_own_reach_the_loss_with_their_transitions(on_policy_batch):
    class Own(PPO):
        def loss(self, params, batch):
            loss, logs = super().loss(params, batch)
            wrong = jnp.sum(batch.extras["own"]["number"] != batch.version)
            return loss, {**logs, "wrong": wrong, "rows": jnp.sum(batch.extras["own"]["number"])}

    agent, params, batch = make(on_policy_batch, agent_class=Own, epochs=1, minibatches=3)
    number = np.arange((LENGTH + 1) * UNROLLS, dtype=np.int32).reshape(LENGTH + 1, UNROLLS)
    batch = batch._replace(version=number, extras={**batch.extras, "own": {"number": number}})
    step = jax.jit(agent.learner_step)
    *_, logs = step(params, agent.initial_learner_state(params), batch)
    total = LENGTH * UNROLLS
    assert (logs["wrong"], 3 * logs["rows"]) == (0, total * (total - 1) / 2)

    batch = batch._replace(extras={**batch.extras, "advantage": batch.extras["log_prob"]})
    with pytest.raises(SpecError, match="'advantage' of actor_step has a name of PPO's"):
        jax.eval_shape(step, params, agent.initial_learner_state(params), batch)


@pytest.mark.parametrize("network", [SMALL, LSTM])
def test_minibatches_are_parts_of_the_batch(network, on_policy_batch):
    agent, params, batch = make(on_policy_batch, network=network)
    batch = agent.prepare(params, batch)
    number = np.arange(LENGTH * UNROLLS, dtype=np.int32).reshape(LENGTH, UNROLLS)
    batch = batch._replace(version=number)
    if network is SMALL:
        index = np.array([17, 0, 47, 9])
        part = jax.jit(agent.minibatch)(batch, index)
        np.testing.assert_array_equal(part.version, index[None])
        np.testing.assert_array_equal(part.stream_id, [1, 0, 7, 1])
        observation = batch.timestep.observation.reshape(-1, 4)[index]
        np.testing.assert_array_equal(part.timestep.observation, observation[None])
    else:
        index = np.array([5, 2])
        part = jax.jit(agent.minibatch)(batch, index)
        np.testing.assert_array_equal(part.version, number[:, index])
        np.testing.assert_array_equal(part.stream_id, index)
        np.testing.assert_array_equal(part.state.hidden, batch.state.hidden[index])
        np.testing.assert_array_equal(
            part.timestep.observation, batch.timestep.observation[:, index]
        )
    assert part.extras["target"].shape == part.version.shape == part.action.shape


class Recorded(PPO):
    """Notes the indices of the minibatches that are learned from."""

    def __init__(self, config, env_spec):
        super().__init__(config, env_spec)
        self.seen = []

    def minibatch(self, batch, index):
        jax.debug.callback(lambda i: self.seen.append(np.array(i)), index, ordered=True)
        return super().minibatch(batch, index)


@pytest.mark.parametrize(("network", "items"), [(SMALL, LENGTH * UNROLLS), (LSTM, UNROLLS)])
def test_each_pass_visits_each_item_once_in_an_order_of_its_own(network, items, on_policy_batch):
    agent, params, batch = make(
        on_policy_batch, agent_class=Recorded, network=network, epochs=3, minibatches=4
    )
    step, learner_state = jax.jit(agent.learner_step), agent.initial_learner_state(params)
    for updates in (12, 24):
        params, learner_state, logs = step(params, learner_state, batch)
        assert int(learner_state.updates) == updates and int(logs["minibatches"]) == 12
    jax.effects_barrier()
    assert {index.shape for index in agent.seen} == {(items // 4,)}
    passes = np.concatenate(agent.seen).reshape(6, items)
    np.testing.assert_array_equal(np.sort(passes, axis=1), np.tile(np.arange(items), (6, 1)))
    assert len({tuple(order) for order in passes.tolist()}) == 6
    assert tuple(range(items)) not in {tuple(order) for order in passes.tolist()}


@pytest.mark.parametrize(("network", "target_kl"), [(SMALL, None), full(LSTM, 1e9)])
def test_the_learner_step_is_composed_of_its_parts(network, target_kl, on_policy_batch):
    settings = {"network": network, "target_kl": target_kl, "epochs": 2, "minibatches": 2}
    agent, params, batch = make(on_policy_batch, agent_class=Recorded, **settings)
    learner_state = agent.initial_learner_state(params)
    whole, whole_state, logs = jax.jit(agent.learner_step)(params, learner_state, batch)
    jax.effects_barrier()
    prepared = agent.prepare(params, batch)
    compute, apply = jax.jit(agent.compute_gradients), jax.jit(agent.apply_gradients)
    losses = []
    for index in list(agent.seen):
        part = PPO.minibatch(agent, prepared, index)
        grads, one = compute(params, learner_state, part)
        params, opt_state, _ = apply(params, learner_state, grads)
        learner_state = agent.update_learner_state(params, opt_state, learner_state)
        losses.append(one["loss"])
    whole_state = whole_state._replace(key=learner_state.key)
    for x, y in zip(
        jax.tree.leaves((whole, whole_state)),
        jax.tree.leaves((params, learner_state)),
        strict=True,
    ):
        np.testing.assert_allclose(x, y, rtol=2e-3, atol=1e-5)
    np.testing.assert_allclose(logs["loss"], np.mean(losses), rtol=1e-4, atol=1e-6)
    assert all(np.shape(v) == () and np.isfinite(v) for v in logs.values())


def test_one_pass_of_one_minibatch_is_one_update_from_the_whole_batch(on_policy_batch):
    agent, params, batch = make(on_policy_batch, epochs=1, minibatches=1)
    learner_state = agent.initial_learner_state(params)
    after, _, logs = jax.jit(agent.learner_step)(params, learner_state, batch)
    grads, direct = jax.jit(agent.compute_gradients)(params, learner_state, batch)
    want, _, _ = agent.apply_gradients(params, learner_state, grads)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-5), after, want)
    np.testing.assert_allclose(logs["loss"], direct["loss"], rtol=1e-4, atol=1e-5)


@pytest.mark.full
def test_learner_steps_under_vmap_are_those_of_each(on_policy_batch):
    agent, params, _ = make(on_policy_batch, target_kl=0.02, epochs=1)
    batches = [on_policy_batch(agent, params, LENGTH, UNROLLS, seed) for seed in range(2)]
    learner_state = agent.initial_learner_state(params)
    stacked = jax.tree.map(lambda *x: np.stack(x), *batches)
    mapped, _, _ = jax.jit(jax.vmap(agent.learner_step, (None, None, 0)))(
        params, learner_state, stacked
    )
    step = jax.jit(agent.learner_step)
    for number, batch in enumerate(batches):
        alone, _, _ = step(params, learner_state, batch)
        jax.tree.map(
            lambda x, y: np.testing.assert_allclose(x[number], y, rtol=2e-3, atol=1e-5),  # noqa: B023
            mapped,
            alone,
        )


@pytest.mark.parametrize("network", [SMALL, LSTM])
def test_what_lies_at_a_boundary_changes_nothing(network, on_policy_batch):
    """Actions, log-probabilities and rewards of the step from LAST to FIRST."""
    network = dataclasses.replace(network, core_inputs_prev_action_reward=False)
    agent, params, batch = make(on_policy_batch, network=network)
    last = batch.timestep.step_type == LAST
    reward, log_prob = batch.timestep.reward.copy(), batch.extras["log_prob"].copy()
    reward[1:][last[:-1]], log_prob[last] = 1e9, -np.inf
    changed = batch._replace(
        timestep=batch.timestep._replace(reward=reward),
        action=np.where(last, 0, batch.action),
        extras={"log_prob": log_prob},
    )
    step, learner_state = jax.jit(agent.learner_step), agent.initial_learner_state(params)
    for x, y in zip(
        jax.tree.leaves(step(params, learner_state, batch)),
        jax.tree.leaves(step(params, learner_state, changed)),
        strict=True,
    ):
        np.testing.assert_array_equal(x, y)
        assert np.all(np.isfinite(x))


def test_a_batch_without_a_real_transition_gives_no_gradient(on_policy_batch):
    agent, params, batch = make(on_policy_batch)
    timestep = batch.timestep._replace(step_type=np.full((LENGTH + 1, UNROLLS), LAST, np.int8))
    grads, logs = jax.jit(agent.compute_gradients)(params, None, batch._replace(timestep=timestep))
    assert all(not np.any(g) for g in jax.tree.leaves(grads))
    assert float(logs["loss"]) == 0


def test_a_stored_state_that_is_one_step_off_is_noticed(on_policy_batch):
    """On policy the behaviour's probabilities are the learner's own, in the midst of episodes."""
    agent, params, batch = make(on_policy_batch, network=LSTM, epochs=1, minibatches=1)
    act, states, log_probs = jax.jit(agent.actor_step), [], []
    state, mid = batch.state, np.ones((LENGTH + 1, UNROLLS), np.int8)
    timestep = batch.timestep._replace(step_type=mid)
    actions = []
    for t in range(LENGTH + 1):
        states.append(state)
        now = jax.tree.map(lambda x: x[t], timestep)  # noqa: B023
        output, state = act(np.array([5, t], np.uint32), params, now, state)
        actions.append(output.action)
        log_probs.append(output.extras["log_prob"])
    played = batch._replace(
        timestep=timestep, action=np.stack(actions), extras={"log_prob": np.stack(log_probs)}
    )
    cut = jax.tree.map(lambda x: x[2:], played[:4])
    learner_state, step = agent.initial_learner_state(params), jax.jit(agent.learner_step)
    for at, right in ((1, False), (2, True), (3, False)):
        window = played._replace(
            **dict(zip(played._fields[:4], cut, strict=True)), state=states[at]
        )
        _, _, logs = step(params, learner_state, window)
        assert (float(logs["kl_behaviour"]) < 1e-6) == right
        assert right or float(logs["kl_behaviour"]) > 1e-4


def test_no_more_updates_once_the_divergence_is_above_its_target(on_policy_batch):
    settings = {"epochs": 3, "minibatches": 4, "learning_rate": 0.03}
    # Rounding alone is below the target; what one update does is above it.
    agent, params, batch = make(on_policy_batch, target_kl=1e-5, **settings)
    learner_state = agent.initial_learner_state(params)
    after, state, logs = jax.jit(agent.learner_step)(params, learner_state, batch)
    assert int(logs["minibatches"]) == 1 and int(state.updates) == 12
    # One update of Adam moves each parameter by its learning rate at most.
    distance = max(
        float(np.abs(x - y).max())
        for x, y in zip(jax.tree.leaves(after), jax.tree.leaves(params), strict=True)
    )
    assert 0.5 * 0.03 < distance < 1.001 * 0.03
    assert float(logs["kl_behaviour"]) > 1e-5  # the mean of the two that were looked at
    assert float(logs["real_fraction"]) <= 1


def test_the_learning_rate_falls_with_every_update(on_policy_batch):
    settings = {"epochs": 2, "minibatches": 2, "learning_rate": 8e-3}
    agent, params, batch = make(on_policy_batch, anneal_updates=8, **settings)
    learner_state, step = agent.initial_learner_state(params), jax.jit(agent.learner_step)
    rates = []
    for _ in range(3):
        before = params
        params, learner_state, logs = step(params, learner_state, batch)
        rates.append(float(logs["learning_rate"]))
    np.testing.assert_allclose(rates, [6.5e-3, 2.5e-3, 0], rtol=1e-5)
    jax.tree.map(np.testing.assert_array_equal, before, params)


@pytest.mark.parametrize("components", [{}, {"torso": ComponentConfig(learning_rate=1e-3)}])
def test_updates_that_are_dropped_count_for_the_learning_rate_and_for_nothing_else(
    on_policy_batch, components
):
    settings = {"epochs": 2, "minibatches": 2, "learning_rate": 8e-3, "components": components}
    agent, params, batch = make(on_policy_batch, anneal_updates=8, target_kl=1e-9, **settings)
    learner_state, step = agent.initial_learner_state(params), jax.jit(agent.learner_step)
    rates = []
    for made in (1, 0, 0):
        params, learner_state, logs = step(params, learner_state, batch)
        rates.append(float(logs["learning_rate"]))
        assert int(logs["minibatches"]) == made
        counts = optax.tree.get_all_with_path(learner_state.opt_state, "count")
        named = {path[-1].tuple_name: int(count) for path, count in counts}
        assert named == {"ScaleByAdamState": 1, "ScaleByScheduleState": int(learner_state.updates)}
    np.testing.assert_allclose(rates, [7.5e-3, 4e-3, 0], rtol=1e-5)


@pytest.mark.full
def test_behind_transforms_a_batch_counts_once_and_makes_all_its_updates(on_policy_batch):
    inner, params, batch = make(on_policy_batch, env_spec=CONTINUOUS, epochs=2, minibatches=3)
    transforms = (ObservationNormalizer(), RewardNormalizer())
    agent = TransformedAgent(inner, transforms, CONTINUOUS)
    params = {**agent.initial_params(KEY), "agent": params}
    learner_state = agent.initial_learner_state(params)
    after, after_state, logs = jax.jit(agent.learner_step)(params, learner_state, batch)
    assert int(after_state.agent.updates) == int(logs["minibatches"]) == 6
    observation = batch.timestep.observation[:-1].reshape(-1, 5)
    seen = after["statistics"]["observation_normalizer"]
    assert float(seen.rows.hi) == len(observation)  # once, whatever the passes
    (mean,) = jax.tree.leaves(statistics.mean(seen))
    np.testing.assert_allclose(mean, observation.mean(0), rtol=1e-4, atol=1e-5)
    rewards = after["statistics"]["reward_normalizer"]
    assert float(rewards.rows.hi) == np.count_nonzero(batch.timestep.step_type[:-1] != LAST)
    # Before there are statistics, transforms change nothing.
    plain, _, _ = jax.jit(inner.learner_step)(params["agent"], learner_state.agent, batch)
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-3, atol=1e-5), after["agent"], plain
    )


def test_repeated_steps_on_one_batch_fit_its_values(on_policy_batch):
    """With a discount of 0 the targets are the rewards, and do not move."""
    agent, params, batch = make(on_policy_batch, network=LSTM, discount=0.0, learning_rate=3e-3)
    learner_state, step, losses = (
        agent.initial_learner_state(params),
        jax.jit(agent.learner_step),
        [],
    )
    for _ in range(20):
        params, learner_state, logs = step(params, learner_state, batch)
        losses.append(float(logs["value_loss"]))
    assert losses[-1] < 0.5 * losses[0]


def test_batches_that_do_not_divide_are_refused(on_policy_batch):
    agent, params, batch = make(on_policy_batch, minibatches=5)
    message = (
        r"agent.minibatches=5 does not divide a batch: 8 unrolls of 6 transitions are 48 "
        r"transitions, 48 / 5 = 9.6; take agent.minibatches=6 or another learner.batch_size"
    )
    with pytest.raises(ConfigError, match=message):
        jax.jit(agent.learner_step)(params, agent.initial_learner_state(params), batch)
    with pytest.raises(ConfigError, match=r"8 unrolls are shuffled whole .* 8 / 16 = 0.5"):
        PPOConfig(network=LSTM, minibatches=16).minibatch_size(6, 8)
    assert PPOConfig(network=LSTM, minibatches=2).minibatch_size(6, 8) == 4
    pytest.importorskip("envpool")
    experiment = presets.experiment("CartPole-v1", "ppo")
    with pytest.raises(ConfigError, match=r"agent.minibatches=3 .* 1024 / 3 = 341.3; take"):
        dataclasses.replace(experiment, agent=PPOConfig(minibatches=3))
    uniform = dataclasses.replace(experiment.replay, table="uniform")
    with pytest.raises(ConfigError, match=r"replay.table=uniform .* PPO .* replay.table=queue"):
        dataclasses.replace(experiment, replay=uniform)


@pytest.mark.parametrize(
    "setting",
    [
        {"discount": 1.5},
        {"gae_lambda": 2},
        {"epochs": 0},
        {"minibatches": 1.5},
        {"clip_ratio": 0.0},
        {"clip_value": -1.0},
        {"target_kl": 0},
        {"learning_rate": float("nan")},
        {"entropy_cost": -1.0},
        {"baseline_cost": -0.1},
        {"max_gradient_norm": -40.0},
        {"anneal_updates": 0},
        {"normalize_advantages": "yes"},
        {"network": "mlp"},
    ],
)
def test_settings_that_cannot_work_are_refused_in_one_line(setting):
    (field,) = setting
    with pytest.raises(ConfigError, match=f"agent.{field}: expected .* got") as error:
        PPOConfig(**setting)
    assert "\n" not in str(error.value)


def test_a_reward_that_is_no_number_is_refused():
    env_spec = DISCRETE._replace(reward=dm_specs.Array((2,), np.float32, "reward"))
    with pytest.raises(ConfigError, match=r"reward: PPO .* got shape \[2\]"):
        PPOConfig().make(env_spec)


@pytest.mark.parametrize("pixels", [False, True])
def test_convolutions_are_not_learned_in_a_loop(pixels):
    """XLA compiles their gradients badly there."""
    if jax.default_backend() != "cpu":
        pytest.skip("it is about a CPU's compiler")
    observation = dm_specs.Array((1, 44, 44), np.uint8)
    spec = DISCRETE._replace(observation=observation) if pixels else DISCRETE
    agent = PPOConfig(epochs=1, minibatches=2).make(spec)
    shape = jax.ShapeDtypeStruct
    batch = Trajectory(
        timestep=jax.tree.map(
            lambda s: shape((3, 2, *s.shape), s.dtype), specs.timestep_struct(spec)
        ),
        action=shape((3, 2), np.int32),
        extras={"log_prob": shape((3, 2), np.float32)},
        version=shape((3, 2), np.int32),
        state=(),
        stream_id=shape((2,), np.int32),
        life=shape((2,), np.int32),
        probability=shape((2,), np.float32),
    )
    params = jax.eval_shape(agent.initial_params, KEY)
    learner_state = jax.eval_shape(agent.initial_learner_state, params)
    traced = jax.make_jaxpr(agent.learner_step)(params, learner_state, batch)
    loops = [eqn.params for eqn in traced.eqns if eqn.primitive.name == "scan"]
    # Of the updates; another one, of the advantages, lies deeper.
    (loop,) = [loop for loop in loops if "dot_general" in str(loop["jaxpr"])]
    assert ("conv_general_dilated" in str(loop["jaxpr"])) == pixels
    assert loop["length"] == 2 and (loop["unroll"] == 2) == pixels


@pytest.mark.parametrize("agent", ["a2c", "ppo"])
def test_presets_suit_every_kind_of_environment(agent):
    """Made, an experiment has checked itself."""
    pytest.importorskip("envpool")
    for env in ("Acrobot-v1", "LunarLander-v2", "Pong-v5", "HalfCheetah-v4", "Pendulum-v1"):
        experiment = presets.experiment(env, agent)
        assert experiment.learner.batch_size == experiment.actors.num_streams


@pytest.mark.parametrize("core", ["none", pytest.param("lstm", marks=pytest.mark.slow)])
def test_learns_cartpole_a_little(core):
    """Random actions last for 22 steps."""
    pytest.importorskip("envpool")
    experiment = presets.experiment("CartPole-v1", "ppo")
    agent = dataclasses.replace(experiment.agent, network=NetworkConfig(core=core))
    goal = Goal(mean_return=100, max_env_steps=100_000)
    ending = single_process(
        dataclasses.replace(experiment, agent=agent, goal=goal),
        stop=threading.Event(),
        printer=lambda _: None,
    )
    assert ending is not None and ending[1], ending


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_solves_cartpole():
    pytest.importorskip("envpool")
    experiment = presets.experiment("CartPole-v1", "ppo")
    goal = Goal(mean_return=475, max_env_steps=1_000_000)
    ending = single_process(dataclasses.replace(experiment, goal=goal), stop=threading.Event())
    assert ending is not None and ending[1], ending
