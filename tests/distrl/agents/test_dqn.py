"""DQN: targets and loss against NumPy, boundaries, exploration, the target network, learning."""

import dataclasses
import itertools
import pickle
import subprocess
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from dm_env import specs as dm_specs

from distrl import presets, specs
from distrl.agents.agent import PRIORITIES
from distrl.agents.dqn import DQNConfig
from distrl.agents.exploration import EpsilonSchedule, epsilon_greedy
from distrl.agents.losses.returns import n_step_targets
from distrl.agents.networks import NetworkConfig
from distrl.agents.r2d2 import R2D2Config
from distrl.agents.schedules import MOST_UPDATES
from distrl.agents.structs import extras_struct, state_struct
from distrl.errors import ConfigError
from distrl.goal import Goal
from distrl.learning.random_batches import random_windows
from distrl.programs.single_process import single_process
from distrl.programs.single_process_parts import SingleProcess
from distrl.replay.config import ReplayConfig
from distrl.specs import EnvironmentSpec
from distrl.types import StepType, Trajectory

FIRST, MID, LAST = int(StepType.FIRST), int(StepType.MID), int(StepType.LAST)
KEY = np.array([0, 1], np.uint32)
SPEC = EnvironmentSpec(dm_specs.Array((4,), np.float32), dm_specs.DiscreteArray(3, np.int32))
SMALL = NetworkConfig(hidden_sizes=(16,))


@pytest.mark.parametrize(
    "config", [DQNConfig(network=SMALL), R2D2Config(network=NetworkConfig(core="lstm"))]
)
def test_small_gradients_of_rare_rewards_make_steps_of_full_size(config):
    """With Adam's epsilon at 1e-5, such steps were a hundredth: R2D2 did not learn on MiniGrid."""
    agent = config.make(SPEC)
    params = agent.initial_params(KEY)
    state = agent.initial_learner_state(params)
    grads = jax.tree.map(lambda x: np.full_like(x, 1e-7), params)
    after, *_ = agent.apply_gradients(params, state, grads)
    moved = jax.tree.map(lambda a, b: np.abs(a - b).mean(), params["network"], after["network"])
    for leaf in jax.tree.leaves(moved):
        assert leaf == pytest.approx(config.learning_rate, rel=0.2)


def targets_by_hand(step_type, reward, discount, value, gamma, n_step):
    """Returns the targets of one stream; NaN if it is not a transition."""
    length = len(step_type) - 1
    targets = np.full(length, np.nan)
    for t in range(length):
        if step_type[t] == LAST:
            continue
        total, factor, now = 0.0, 1.0, t
        while now < length and now - t < n_step and (now == t or step_type[now] != LAST):
            now += 1
            total += factor * reward[now]
            factor *= gamma
        bootstraps = step_type[now] != LAST or discount[now] == 1
        targets[t] = total + (factor * value[now] if bootstraps else 0.0)
    return targets


def make_batch(agent, length=7, batch_size=30, seed=0):
    rng = np.random.default_rng(seed)
    shape = (length + 1, batch_size)
    step_type, discount = random_windows(rng, length, batch_size)
    timestep = specs.zeros(specs.timestep_struct(agent.env_spec), *shape)
    timestep = timestep._replace(
        step_type=step_type,
        discount=discount,
        reward=np.where(step_type == FIRST, 0, 2 * rng.normal(size=shape)).astype(np.float32),
        observation=jax.tree.map(
            lambda x: rng.normal(size=x.shape).astype(np.float32), timestep.observation
        ),
    )
    return Trajectory(
        timestep=timestep,
        action=rng.integers(3, size=shape, dtype=np.int32),
        extras=(),
        version=np.zeros(shape, np.int32),
        state=agent.initial_state(batch_size),
        stream_id=np.arange(batch_size, dtype=np.int32),
        life=np.zeros(batch_size, np.int32),
        probability=np.full(batch_size, 0.01, np.float32),
    )


def two_networks(agent):
    """Parameters, and a learner state whose target network is another one."""
    params, other = (agent.initial_params(np.array([0, k], np.uint32)) for k in (1, 2))
    learner_state = agent.initial_learner_state(params)
    return params, learner_state._replace(target=other["network"])


@pytest.mark.parametrize("n_step", [1, 2, 3, 20])
def test_targets_equal_a_recursion_in_numpy(n_step):
    rng = np.random.default_rng(n_step)
    step_type, discount = random_windows(rng, 7, 300)
    reward, value = rng.normal(size=(2, *step_type.shape)).astype(np.float32)
    gamma = 0.9
    function = lambda *args: n_step_targets(*args, n_step)  # noqa: E731
    got = jax.jit(function)(step_type, reward, gamma * discount, value)
    want = np.stack(
        [
            targets_by_hand(*column, gamma, n_step)
            for column in zip(step_type.T, reward.T, discount.T, value.T, strict=True)
        ],
        axis=1,
    )
    real = step_type[:-1] != LAST
    np.testing.assert_array_equal(np.isfinite(want), real)
    np.testing.assert_allclose(got[real], want[real], rtol=1e-5, atol=1e-5)
    split = lambda x: x.reshape(x.shape[0], 3, 100).swapaxes(0, 1)  # noqa: E731
    mapped = jax.vmap(function)(*(split(x) for x in (step_type, reward, gamma * discount, value)))
    np.testing.assert_allclose(mapped, split(np.asarray(got)), rtol=1e-6, atol=1e-6)
    # What a mistake would give is not what we give.
    limits = real & (step_type[1:] == LAST) & (discount[1:] == 1)
    assert limits.any()
    no_limits = np.where(step_type == LAST, 0, discount)
    dropped = jax.jit(function)(step_type, reward, gamma * no_limits, value)
    assert (np.abs(dropped - got)[limits] > 1e-3).mean() > 0.9
    glued = jax.jit(function)(np.full_like(step_type, MID), reward, gamma * discount, value)
    assert n_step == 1 or np.abs(np.asarray(glued - got))[limits].max() > 1e-2


def test_targets_by_hand_into_a_limit_a_true_end_and_the_edge():
    #            F    M    L(limit) F    L(true) F   M
    step_type = [FIRST, MID, LAST, FIRST, LAST, FIRST, MID]
    reward = [0, 1, 2, 0, 3, 0, 4]
    discount = [1, 1, 1, 1, 0, 1, 1]
    columns = [np.array(x, np.float32)[:, None] for x in (step_type, reward, discount)]
    value = np.full((7, 1), 10, np.float32)
    one = n_step_targets(columns[0], columns[1], 0.5 * columns[2], value, 1)[:, 0]
    two = n_step_targets(columns[0], columns[1], 0.5 * columns[2], value, 2)[:, 0]
    assert [one[t] for t in (0, 1, 3, 5)] == [6, 7, 3, 9]
    # 1 + 2 / 2 + 10 / 4; the others have one step only
    assert [two[t] for t in (0, 1, 3, 5)] == [4.5, 7, 3, 9]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"double": False},
        {"n_step": 3, "huber_delta": None},
        {"n_step": 2, "dueling": True},
        {"importance_exponent": 0.5},
        {"network": NetworkConfig(hidden_sizes=(16,), core="lstm", core_size=8)},
    ],
)
def test_the_loss_equals_numpys(settings):
    agent = DQNConfig(**{"network": SMALL, "discount": 0.9, **settings}).make(SPEC)
    params, learner_state = two_networks(agent)
    batch = make_batch(agent)
    if "importance_exponent" in settings:
        batch = batch._replace(probability=np.linspace(0.01, 0.05, 30, dtype=np.float32))
    loss, logs = jax.jit(agent.loss)(params["network"], learner_state.target, batch)
    online, target = (
        np.asarray(jax.jit(agent.network.unroll)(p, batch.timestep, batch.state)[0], np.float64)
        for p in (params["network"], learner_state.target)
    )
    choice = (online if agent.config.double else target).argmax(-1)
    step_type, discount = batch.timestep.step_type, batch.timestep.discount
    losses, errors, values = [], [], []
    for b in range(30):
        value = target[np.arange(8), b, choice[:, b]]
        want = targets_by_hand(
            step_type[:, b], batch.timestep.reward[:, b], discount[:, b], value,
            agent.config.discount, agent.config.n_step,
        )  # fmt: skip
        for t in np.flatnonzero(np.isfinite(want)):
            values.append(online[t, b, batch.action[t, b]])
            error = want[t] - values[-1]
            one = 0.5 * error**2
            if agent.config.huber_delta is not None and abs(error) > 1:
                one = abs(error) - 0.5
            weight = (batch.probability[b] / 0.01) ** -agent.config.importance_exponent
            losses.append(weight * one)
            errors.append(abs(error))
    np.testing.assert_allclose(loss, np.mean(losses), rtol=1e-4)
    np.testing.assert_allclose(logs["td_error"], np.mean(errors), rtol=1e-4)
    np.testing.assert_allclose(logs["value"], np.mean(values), rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(logs["real_fraction"], len(losses) / (7 * 30), rtol=1e-6)


def test_what_lies_at_a_boundary_changes_no_gradient():
    agent = DQNConfig(network=SMALL, n_step=3).make(SPEC)
    params, learner_state = two_networks(agent)
    batch = make_batch(agent)
    gradients = jax.jit(agent.compute_gradients)
    before, _ = gradients(params, learner_state, batch)
    last = batch.timestep.step_type == LAST
    reward, action = batch.timestep.reward.copy(), np.where(last, 0, batch.action)
    reward[1:][last[:-1]] = 1e9
    timestep = batch.timestep._replace(reward=reward)
    after, _ = gradients(params, learner_state, batch._replace(timestep=timestep, action=action))
    jax.tree.map(np.testing.assert_array_equal, before, after)
    assert all(np.any(g) for g in jax.tree.leaves(before["network"]))
    nothing = np.where(np.arange(8)[:, None] % 2, FIRST, LAST) + np.zeros((8, 30))
    timestep = batch.timestep._replace(step_type=nothing.astype(np.int8)[:2])
    timestep = jax.tree.map(lambda x: x[:2], timestep)
    grads, logs = gradients(
        params, learner_state, batch._replace(timestep=timestep, action=action[:2])
    )
    assert all(not np.any(g) for g in jax.tree.leaves(grads))
    assert float(logs["loss"]) == 0


def test_epsilon_greedy_frequencies():
    values = np.array([[0.0, 2.0, 1.0, -1.0]] * 40_000, np.float32)
    actions = np.asarray(jax.jit(epsilon_greedy)(KEY, values, 0.4))
    share = np.bincount(actions, minlength=4) / len(actions)
    # Five standard deviations are 0.012.
    np.testing.assert_allclose(share, [0.1, 0.7, 0.1, 0.1], atol=0.012)
    each = np.where(np.arange(40_000) < 20_000, 0.0, 1.0)
    actions = np.asarray(epsilon_greedy(KEY, values, each))
    assert (actions[:20_000] == 1).all()
    share = np.bincount(actions[20_000:], minlength=4) / 20_000
    np.testing.assert_allclose(share, 0.25, atol=0.016)


def test_actors_explore_by_the_parameters_and_evaluation_is_greedy():
    agent = DQNConfig(network=SMALL, evaluation_epsilon=0.0).make(SPEC)
    params = agent.initial_params(KEY)
    act = jax.jit(agent.actor_step, static_argnames="evaluation")
    rng = np.random.default_rng(0)
    timestep = specs.zeros(specs.timestep_struct(SPEC), 3000)
    timestep = timestep._replace(
        observation=rng.normal(size=(3000, 4)).astype(np.float32),
        step_type=np.ones(3000, np.int8),
    )
    values, _ = agent.network.step(params["network"], timestep, ())
    greedy = np.argmax(values, axis=-1)
    assert float(params["epsilon"]) == 1
    output, _ = act(KEY, params, timestep, ())
    specs.check(output.action, SPEC.action, (3000,), "action")
    assert (np.asarray(output.action) == greedy).mean() == pytest.approx(1 / 3, abs=0.05)
    for epsilon, share in ((0.0, 1.0), (0.3, 0.8)):
        output, _ = act(KEY, {**params, "epsilon": np.float32(epsilon)}, timestep, ())
        assert (np.asarray(output.action) == greedy).mean() == pytest.approx(share, abs=0.05)
    output, _ = act(KEY, params, timestep, (), evaluation=True)
    np.testing.assert_array_equal(output.action, greedy)


def learn(agent, updates, batch=None):
    """Parameters and learner states, before the first update and after each."""
    params = agent.initial_params(KEY)
    learner_state = agent.initial_learner_state(params)
    batch = make_batch(agent) if batch is None else batch
    step, history = jax.jit(agent.learner_step), [(params, learner_state)]
    for _ in range(updates):
        params, learner_state, logs = step(params, learner_state, batch)
        assert logs.pop(PRIORITIES).shape == batch.probability.shape
        assert all(np.shape(v) == () and np.isfinite(v) for v in logs.values())
        history.append((params, learner_state))
    return history


def same(one, two):
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(one), jax.tree.leaves(two)))


def test_the_target_network_is_copied_at_its_period():
    history = learn(DQNConfig(network=SMALL, target_period=3).make(SPEC), 7)
    networks = [params["network"] for params, _ in history]
    assert not any(same(a, b) for a, b in itertools.pairwise(networks))
    copied_at = [0, 0, 0, 3, 3, 3, 6, 6]
    for (_, learner_state), copied in zip(history, copied_at, strict=True):
        assert same(learner_state.target, networks[copied])
    assert [int(state.updates) for _, state in history] == list(range(8))


def test_after_2_to_the_31_updates_all_is_as_before():
    """The target network's period keeps its phase, and epsilon stays at its end."""
    epsilon = EpsilonSchedule(start=1.0, end=0.2, updates=4)
    agent = DQNConfig(network=SMALL, target_period=3, epsilon=epsilon).make(SPEC)
    params = agent.initial_params(KEY)
    last = 2**31 - 1
    state = agent.initial_learner_state(params)._replace(updates=np.int32(last - 2))
    step, copied = jax.jit(agent.learner_step), []
    for number in range(last - 1, last + 6):
        params, state, _ = step(params, state, make_batch(agent))
        assert params["epsilon"] == pytest.approx(0.2)
        assert (int(state.updates) - number) % 3 == 0
        assert int(state.updates) > MOST_UPDATES
        copied.append(same(state.target, params["network"]))
    assert copied == [number % 3 == 0 for number in range(last - 1, last + 6)]


def test_the_target_network_as_a_moving_average():
    agent = DQNConfig(network=SMALL, target_period=2, target_tau=0.25).make(SPEC)
    history = learn(agent, 4)
    want = history[0][1].target
    for update, (params, learner_state) in enumerate(history[1:], 1):
        if update % 2 == 0:
            want = jax.tree.map(lambda old, new: 0.75 * old + 0.25 * new, want, params["network"])
        jax.tree.map(
            lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-7),
            learner_state.target,
            want,
        )


def test_epsilon_falls_with_the_updates():
    epsilon = EpsilonSchedule(start=1.0, end=0.2, updates=4)
    history = learn(DQNConfig(network=SMALL, epsilon=epsilon).make(SPEC), 6)
    np.testing.assert_allclose(
        [params["epsilon"] for params, _ in history], [1, 0.8, 0.6, 0.4, 0.2, 0.2, 0.2], rtol=1e-6
    )
    assert history[0][0]["epsilon"].dtype == history[-1][0]["epsilon"].dtype == np.float32


def test_epsilon_falls_with_the_environment_steps():
    epsilon = EpsilonSchedule(start=1.0, end=0.2, steps=400)
    agent = DQNConfig(network=SMALL, epsilon=epsilon).make(SPEC)
    history = learn(agent, 2)
    assert [float(params["epsilon"]) for params, _ in history] == [1, 1, 1]  # not by updates
    params = history[0][0]
    got = [agent.with_env_steps(params, steps)["epsilon"] for steps in (0, 100, 200, 400, 9999)]
    np.testing.assert_allclose(got, [1, 0.8, 0.6, 0.2, 0.2], rtol=1e-6)
    assert got[0].dtype == params["epsilon"].dtype == np.float32
    after, *_ = agent.learner_step(
        agent.with_env_steps(params, 100), history[0][1], make_batch(agent)
    )
    assert float(after["epsilon"]) == pytest.approx(0.8)
    by_updates = DQNConfig(network=SMALL, epsilon=EpsilonSchedule(updates=4)).make(SPEC)
    assert by_updates.with_env_steps(params, 100) is params


def test_evaluation_is_nearly_greedy():
    """It never repeats itself for ever; with an epsilon of 0 it is greedy."""
    timestep = specs.zeros(specs.acting_struct(SPEC), 4000)
    assert DQNConfig().evaluation_epsilon == 0.001
    shares = {}
    for epsilon in (0.0, 0.001, 0.5):
        agent = DQNConfig(network=SMALL, evaluation_epsilon=epsilon).make(SPEC)
        params = agent.initial_params(KEY)
        output, _ = agent.actor_step(KEY, params, timestep, (), evaluation=True)
        outputs, _ = agent.network.step(params["network"], timestep, ())
        best = np.argmax(outputs, axis=-1)
        shares[epsilon] = float(np.mean(output.action != best))
    assert shares[0.0] == 0
    assert 0 < shares[0.001] < 0.005
    assert shares[0.5] == pytest.approx(0.5 * 2 / 3, abs=0.04)


def test_a_pickle_of_before_keeps_its_network_and_its_evaluation():
    """Saved policies have the settings of their time: `load_policy` unpickles them."""
    for config in (DQNConfig(SMALL, dueling=True), R2D2Config()):
        state = {k: v for k, v in config.__dict__.items() if k not in DQNConfig.BEFORE}
        old = type(config).__new__(type(config))
        old.__setstate__(state)
        assert (old.dueling_streams, old.evaluation_epsilon) == (False, 0.0)
        params = old.make(SPEC).initial_params(KEY)["network"]
        assert not any("stream" in name for name in params)
        new = pickle.loads(pickle.dumps(config))
        assert new == config and new.dueling_streams


def test_the_learner_step_is_composed_of_its_parts():
    agent = DQNConfig(network=SMALL).make(SPEC)
    params, learner_state = two_networks(agent)
    batch = make_batch(agent)
    whole, whole_state, _ = jax.jit(agent.learner_step)(params, learner_state, batch)
    grads, _ = jax.jit(agent.compute_gradients)(params, learner_state, batch)
    assert jax.tree.structure(grads) == jax.tree.structure(params)
    grads = jax.tree.map(lambda a, b: (a + b) / 2, grads, grads)  # as of two devices
    parts, opt_state, _ = jax.jit(agent.apply_gradients)(params, learner_state, grads)
    parts_state = agent.update_learner_state(parts, opt_state, learner_state)
    for x, y in zip(jax.tree.leaves((whole, whole_state)), jax.tree.leaves((parts, parts_state))):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)


def test_gradients_are_clipped_to_their_norm():
    agent = DQNConfig(network=SMALL, max_gradient_norm=1e-3).make(SPEC)
    params, learner_state = two_networks(agent)
    grads = jax.tree.map(jnp.ones_like, params)
    _, opt_state, logs = agent.apply_gradients(params, learner_state, grads)
    first_moment = optax.tree.get(opt_state, "mu")
    assert float(optax.tree.norm(first_moment)) == pytest.approx(0.1 * 1e-3, rel=1e-3)
    assert float(logs["gradient_norm"]) > 1


@pytest.mark.full
def test_repeated_steps_on_one_batch_fit_its_values():
    """With a discount of 0 the targets are the rewards, and do not move."""
    agent = DQNConfig(discount=0.0).make(SPEC)
    batch = make_batch(agent)
    history = learn(agent, 150, batch)
    loss = jax.jit(agent.loss)
    losses = [float(loss(p["network"], s.target, batch)[0]) for p, s in (history[0], history[-1])]
    assert losses[1] < 0.2 * losses[0]


@pytest.mark.full
def test_learns_cartpole_a_little():
    """Random actions last for 22 steps."""
    pytest.importorskip("envpool")
    experiment = presets.experiment("CartPole-v1", "dqn")
    agent = dataclasses.replace(experiment.agent, epsilon=EpsilonSchedule(updates=500))
    parts = SingleProcess(dataclasses.replace(experiment, agent=agent))
    (task,) = parts.tasks.values()
    try:
        while task.learner.version < 800:
            parts.run_once()
        episodes = parts.actor.take_report()["episodes"][-50:]
    finally:
        parts.actor.close()
    assert np.mean([episode[0] for episode in episodes]) > 70


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_solves_cartpole():
    pytest.importorskip("envpool")
    experiment = presets.experiment("CartPole-v1", "dqn")
    goal = Goal(mean_return=475, max_trained_steps=4_000_000)
    ending = single_process(dataclasses.replace(experiment, goal=goal), stop=threading.Event())
    assert ending is not None and ending[1], ending


def test_goal_environments_observations_are_flattened():
    goal = dm_specs.Array((2,), np.float32)
    observation = {
        "observation": dm_specs.Array((3,), np.float32),
        "achieved_goal": goal,
        "desired_goal": goal,
    }
    agent = DQNConfig(network=SMALL).make(SPEC._replace(observation=observation))
    (history,) = [learn(agent, 1)]
    assert history[0][0]["network"]["torso/~/linear_0"]["w"].shape == (7, 16)
    # Every part reaches the values.
    timestep = specs.zeros(specs.timestep_struct(agent.env_spec), 1)
    params = history[0][0]["network"]
    base, _ = agent.network.step(params, timestep, ())
    for name in observation:
        changed = {**timestep.observation, name: timestep.observation[name] + 1}
        values, _ = agent.network.step(params, timestep._replace(observation=changed), ())
        assert np.abs(values - base).max() > 1e-3


@pytest.mark.parametrize(
    "setting",
    [
        {"discount": 1.5},
        {"learning_rate": 0.0},
        {"n_step": 0},
        {"n_step": 1.5},
        {"huber_delta": 0.0},
        {"target_period": 0},
        {"target_tau": 0.0},
        {"target_tau": 1.1},
        {"max_gradient_norm": -1.0},
        {"importance_exponent": -0.1},
        {"evaluation_epsilon": 1.5},
        {"dueling_streams": 1},
        {"epsilon": 0.1},
        {"network": "mlp"},
    ],
)
def test_settings_that_cannot_work_are_refused_in_one_line(setting):
    (field,) = setting
    with pytest.raises(ConfigError, match=f"agent.{field}: expected .* got") as error:
        DQNConfig(**setting)
    assert "\n" not in str(error.value)


def test_schedules_that_cannot_work_are_refused():
    for setting in ({"start": 1.1}, {"end": -0.1}, {"updates": 0}, {"steps": 0}):
        (field,) = setting
        with pytest.raises(ConfigError, match=f"agent.epsilon.{field}: expected .* got"):
            EpsilonSchedule(**setting)
    assert dataclasses.replace(EpsilonSchedule(), end=0.5).end == 0.5


def test_environments_that_do_not_suit_are_refused():
    continuous = SPEC._replace(action=dm_specs.BoundedArray((2,), np.float32, -1, 1))
    with pytest.raises(
        ConfigError, match=r"action: DQN takes one DiscreteArray, got.*also sac or td3"
    ):
        DQNConfig().make(continuous)
    vector = SPEC._replace(reward=dm_specs.Array((2,), np.float32, "reward"))
    with pytest.raises(ConfigError, match=r"reward: DQN .* got shape \[2\]"):
        DQNConfig().make(vector)


def test_settings_that_would_be_cut_silently_are_refused():
    with pytest.raises(ConfigError, match=r"agent\.burn_in=2 brings a memory up .*none"):
        DQNConfig(burn_in=2)
    replay = ReplayConfig("uniform", unroll_length=8)
    DQNConfig(n_step=8).check_replay(replay, 32)
    with pytest.raises(ConfigError, match=r"n_step=9 is more than replay\.unroll_length=8 = 8: no"):
        DQNConfig(n_step=9).check_replay(replay, 32)
    lstm = NetworkConfig(core="lstm")
    with pytest.raises(ConfigError, match=r"n_step=5 .*=8 - agent\.burn_in=4 = 4: .*9$"):
        DQNConfig(lstm, n_step=5, burn_in=4).check_replay(replay, 32)


STRUCTS = """
import sys
import jax, numpy as np
from dm_env import specs as dm_specs
from jax._src import xla_bridge
from distrl.agents.structs import extras_struct, state_struct
from distrl.agents.dqn import DQNConfig
from distrl.agents.networks import NetworkConfig
from distrl.goal import Goal
from distrl.specs import EnvironmentSpec

vector, pixels = dm_specs.Array((4,), np.float32), dm_specs.Array((4, 84, 84), np.uint8)
for observation in (vector, pixels):
    for core in ("none", "lstm"):
        config = DQNConfig(network=NetworkConfig(core=core), dueling=core == "lstm")
        agent = config.make(EnvironmentSpec(observation, dm_specs.DiscreteArray(3, np.int32)))
        assert extras_struct(agent) == ()
        assert len(jax.tree.leaves(state_struct(agent))) == (2 if core == "lstm" else 0)
assert not xla_bridge.backends_are_initialized()
assert "tensorflow" not in sys.modules
"""


@pytest.mark.full
def test_structs_make_no_backend_and_import_no_tensorflow():
    agent = DQNConfig().make(SPEC)
    assert extras_struct(agent) == () == state_struct(agent)
    done = subprocess.run(
        [sys.executable, "-c", STRUCTS], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
