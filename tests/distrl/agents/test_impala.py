"""The IMPALA agent as a whole: shapes, masks, learning, settings, and no backend before a fork."""

import dataclasses
import subprocess
import sys
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
import pytest
from dm_env import specs as dm_specs

from distrl import specs
from distrl.agents.impala import IMPALAConfig
from distrl.agents.networks import NetworkConfig
from distrl.agents.structs import extras_struct, state_struct
from distrl.errors import ConfigError
from distrl.replay.config import ReplayConfig
from distrl.specs import EnvironmentSpec
from distrl.types import StepType, Trajectory
from tests.support.selection import full

FIRST, MID, LAST = int(StepType.FIRST), int(StepType.MID), int(StepType.LAST)
KEY = np.array([0, 1], np.uint32)
DISCRETE = EnvironmentSpec(dm_specs.Array((4,), np.float32), dm_specs.DiscreteArray(2, np.int32))
CONTINUOUS = EnvironmentSpec(
    dm_specs.Array((17,), np.float32), dm_specs.BoundedArray((6,), np.float32, -1.0, 1.0)
)
LSTM = NetworkConfig(core="lstm", core_size=8)


def make_batch(agent, params, length=5, batch_size=4, seed=0):
    """A batch whose actions came from `params`, with ends in the midst of it."""
    rng = np.random.default_rng(seed)
    shape = (length + 1, batch_size)
    timestep = specs.zeros(specs.timestep_struct(agent.env_spec), *shape)
    step_type = np.full(shape, MID, np.int8)
    if length == 5:
        step_type[2:4, 0] = step_type[0:2, 1] = LAST, FIRST
    timestep = timestep._replace(
        step_type=step_type,
        discount=np.where(step_type == LAST, 0, 1).astype(np.float32),
        reward=rng.normal(size=shape).astype(np.float32),
        observation=rng.normal(size=timestep.observation.shape).astype(np.float32),
    )
    state = agent.initial_state(batch_size)

    @jax.jit
    def play(params, timestep, state):
        policy, _, _ = agent.network.unroll(params, timestep, state)
        return agent.network.distribution.sample_with_log_prob(KEY, policy)

    action, log_prob = play(params, timestep, state)
    return Trajectory(
        timestep=timestep,
        action=np.array(action),
        extras={"log_prob": np.array(log_prob)},
        version=np.zeros(shape, np.int32),
        state=state,
        stream_id=np.arange(batch_size, dtype=np.int32),
        life=np.zeros(batch_size, np.int32),
        probability=np.ones(batch_size, np.float32),
    )


class Jitted(NamedTuple):
    """The agent's functions, compiled once for the tests that share them."""

    actor_step: Callable
    learner_step: Callable
    compute_gradients: Callable


@pytest.fixture(params=["discrete", full("continuous"), "continuous lstm"], scope="module")
def case(request):
    env_spec = CONTINUOUS if "continuous" in request.param else DISCRETE
    network = LSTM if "lstm" in request.param else NetworkConfig()
    agent = IMPALAConfig(network=network).make(env_spec)
    params = agent.initial_params(KEY)
    jitted = Jitted(
        jax.jit(agent.actor_step, static_argnames="evaluation"),
        jax.jit(agent.learner_step),
        jax.jit(agent.compute_gradients),
    )
    return agent, jitted, params, make_batch(agent, params)


def test_actor_step_keeps_shapes_and_dtypes(case):
    agent, jitted, params, batch = case
    now = jax.tree.map(lambda x: x[0], batch.timestep)
    for evaluation in (False, True):
        output, state = jitted.actor_step(KEY, params, now, batch.state, evaluation=evaluation)
        specs.check(output.action, agent.env_spec.action, (4,), "action")
        specs.check(output.extras, extras_struct(agent), (4,), "extras")
        specs.check(state, state_struct(agent), (4,), "state")


def test_evaluation_is_the_mode_whatever_the_key(case):
    agent, jitted, params, batch = case
    now = jax.tree.map(lambda x: x[0], batch.timestep)
    one, two = (
        jitted.actor_step(np.array([0, k], np.uint32), params, now, batch.state, evaluation=True)[0]
        for k in (1, 2)
    )
    np.testing.assert_array_equal(one.action, two.action)
    policy, _, _ = jax.jit(agent.network.step)(params, now, batch.state)
    np.testing.assert_allclose(one.action, agent.network.distribution.mode(policy), atol=1e-6)


def test_the_learner_step_is_composed_of_its_parts(case):
    agent, jitted, params, batch = case
    learner_state = agent.initial_learner_state(params)
    whole, whole_state, logs = jitted.learner_step(params, learner_state, batch)
    grads, _ = jitted.compute_gradients(params, None, batch)
    parts, opt_state, _ = jax.jit(agent.apply_gradients)(params, learner_state, grads)
    parts_state = agent.update_learner_state(parts, opt_state, learner_state)
    for x, y in zip(
        jax.tree.leaves((whole, whole_state)), jax.tree.leaves((parts, parts_state)), strict=True
    ):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)
    assert all(np.shape(v) == () and np.isfinite(v) for v in logs.values())
    assert int(whole_state.updates) == 1
    assert float(logs["real_fraction"]) == pytest.approx(18 / 20)
    np.testing.assert_allclose(logs["rho"], 1, rtol=1e-3)  # the batch is on policy
    np.testing.assert_allclose(logs["kl_behaviour"], 0, atol=1e-3)


def test_repeated_steps_on_one_batch_fit_its_values():
    """With a discount of 0 the targets are the rewards, and do not move."""
    agent = IMPALAConfig(network=LSTM, discount=0.0).make(CONTINUOUS)
    params = agent.initial_params(KEY)
    batch, learner_state = make_batch(agent, params), agent.initial_learner_state(params)
    step = jax.jit(agent.learner_step)
    losses = []
    for _ in range(60):
        params, learner_state, logs = step(params, learner_state, batch)
        losses.append(float(logs["value_loss"]))
    assert losses[-1] < 0.5 * losses[0]


def test_what_lies_at_a_boundary_changes_no_gradient(case):
    """Actions, log-probabilities and rewards of the step from LAST to FIRST."""
    agent, jitted, params, batch = case
    before, _ = jitted.compute_gradients(params, None, batch)
    step_type = batch.timestep.step_type
    action, log_prob, reward = (
        np.array(x) for x in (batch.action, batch.extras["log_prob"], batch.timestep.reward)
    )
    last = step_type == LAST
    action[last] = 0
    log_prob[last] = -np.inf
    reward[1:][last[:-1]] = 1e9
    after, _ = jitted.compute_gradients(
        params,
        None,
        batch._replace(
            action=action,
            extras={"log_prob": log_prob},
            timestep=batch.timestep._replace(reward=reward),
        ),
    )
    if agent.config.network.core == "lstm":  # the reward is an input of the core as well
        assert all(np.isfinite(g).all() for g in jax.tree.leaves(after))
    else:
        jax.tree.map(np.testing.assert_array_equal, before, after)


def test_the_loss_is_a_mean_over_real_transitions_only():
    """A batch of episodes in pieces, and the same pieces packed into one window, agree."""
    agent = IMPALAConfig().make(DISCRETE)
    params = agent.initial_params(KEY)
    packed = make_batch(agent, params, length=7, batch_size=1)
    step_type = np.full((8, 1), MID, np.int8)
    step_type[3], step_type[4] = LAST, FIRST
    timestep = packed.timestep._replace(
        step_type=step_type, discount=(step_type != LAST).astype(np.float32)
    )
    packed = packed._replace(timestep=timestep)
    cut = lambda x: np.concatenate([x[:4], x[4:]], axis=1)  # noqa: E731
    apart = packed._replace(
        timestep=jax.tree.map(cut, timestep),
        action=cut(packed.action),
        extras=jax.tree.map(cut, packed.extras),
    )
    loss = jax.jit(jax.value_and_grad(agent.loss, has_aux=True))
    losses, grads = zip(*(loss(params, b) for b in (packed, apart)), strict=True)
    for name, x in losses[0][1].items():
        if name != "real_fraction":
            np.testing.assert_allclose(x, losses[1][1][name], rtol=1e-5, atol=1e-6, err_msg=name)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6), *grads)


def test_a_batch_without_a_real_transition_gives_no_gradient():
    agent = IMPALAConfig().make(DISCRETE)
    params = agent.initial_params(KEY)
    batch = make_batch(agent, params, length=1)
    step_type = np.stack([np.full(4, LAST), np.full(4, FIRST)]).astype(np.int8)
    batch = batch._replace(timestep=batch.timestep._replace(step_type=step_type))
    grads, logs = jax.jit(agent.compute_gradients)(params, None, batch)
    assert all(not np.any(g) for g in jax.tree.leaves(grads))
    assert float(logs["loss"]) == 0


def test_learns_a_bandit():
    """One of two actions pays; each batch has new actions of the policy."""
    agent = IMPALAConfig(discount=0.0).make(DISCRETE)
    params = agent.initial_params(KEY)
    learner_state = agent.initial_learner_state(params)
    batch = make_batch(agent, params, length=4, batch_size=16)
    batch = batch._replace(timestep=jax.tree.map(np.ones_like, batch.timestep))
    step, act = jax.jit(agent.learner_step), jax.jit(agent.actor_step)
    now = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch.timestep)
    for k in range(60):
        output, _ = act(np.array([7, k], np.uint32), params, now, ())
        action, log_prob = (
            np.asarray(x).reshape(5, 16) for x in (output.action, output.extras["log_prob"])
        )
        reward = np.concatenate([np.zeros((1, 16)), action[:-1]]).astype(np.float32)
        batch = batch._replace(
            timestep=batch.timestep._replace(reward=reward),
            action=action,
            extras={"log_prob": log_prob},
        )
        params, learner_state, _ = step(params, learner_state, batch)
    assert action.mean() > 0.9


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
def test_the_learning_rate_falls_to_zero(optimizer):
    agent = IMPALAConfig(optimizer=optimizer, learning_rate=1e-2, anneal_updates=4).make(DISCRETE)
    params = agent.initial_params(KEY)
    learner_state = agent.initial_learner_state(params)
    batch = make_batch(agent, params)
    step, rates = jax.jit(agent.learner_step), []
    for _ in range(6):
        before = params
        params, learner_state, logs = step(params, learner_state, batch)
        rates.append(float(logs["learning_rate"]))
    np.testing.assert_allclose(rates, [1e-2, 7.5e-3, 5e-3, 2.5e-3, 0, 0], rtol=1e-5)
    jax.tree.map(np.testing.assert_array_equal, before, params)


@pytest.mark.parametrize(
    "setting",
    [
        {"discount": 1.5},
        {"discount": "0.9"},
        {"learning_rate": 0.0},
        {"learning_rate": float("nan")},
        {"entropy_cost": -1.0},
        {"baseline_cost": -0.1},
        {"vtrace_lambda": 2},
        {"clip_rho": 0.0},
        {"clip_pg_rho": -1.0},
        {"max_gradient_norm": -40.0},
        {"anneal_updates": 0},
        {"optimizer": "momentum"},
        {"network": "mlp"},
    ],
)
def test_settings_that_cannot_work_are_refused_in_one_line(setting):
    (field,) = setting
    with pytest.raises(ConfigError, match=f"agent.{field}: expected .* got") as error:
        IMPALAConfig(**setting)
    assert "\n" not in str(error.value)


def test_whole_numbers_are_settings_too(case):
    agent, _, params, batch = case
    losses = []
    for one in (1, 1.0):
        settings = {"vtrace_lambda": one, "discount": one, "clip_rho": one}
        changed = dataclasses.replace(agent.config, **settings).make(agent.env_spec)
        losses.append(float(jax.jit(changed.loss)(params, batch)[0]))
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_a_reward_that_is_no_number_is_refused():
    env_spec = DISCRETE._replace(reward=dm_specs.Array((2,), np.float32, "reward"))
    with pytest.raises(ConfigError, match=r"reward: .* got shape"):
        IMPALAConfig().make(env_spec)


def test_a_table_whose_priorities_would_never_change_is_refused():
    for table in ("queue", "uniform"):
        IMPALAConfig().check_replay(ReplayConfig(table), 32)
    with pytest.raises(ConfigError, match=r"replay\.table=prioritized: IMPALA computes no priorit"):
        IMPALAConfig().check_replay(ReplayConfig("prioritized"), 32)


STRUCTS = """
import sys
import jax, numpy as np
from dm_env import specs as dm_specs
from jax._src import xla_bridge
from distrl.agents.structs import extras_struct, state_struct
from distrl.agents.impala import IMPALAConfig
from distrl.agents.networks import NetworkConfig
from distrl.specs import EnvironmentSpec

vector, pixels = dm_specs.Array((4,), np.float32), dm_specs.Array((4, 84, 84), np.uint8)
discrete = dm_specs.DiscreteArray(2, np.int32)
bounded = dm_specs.BoundedArray((6,), np.float32, -1.0, 1.0)
number = jax.ShapeDtypeStruct((), np.float32)
memory = jax.ShapeDtypeStruct((64,), np.float32)
for observation, torso in ((vector, "mlp"), (pixels, "nature_cnn"), (pixels, "impala_resnet")):
    for action in (discrete, bounded):
        for core in ("none", "lstm"):
            config = IMPALAConfig(network=NetworkConfig(torso=torso, core=core))
            agent = config.make(EnvironmentSpec(observation, action))
            assert extras_struct(agent) == {"log_prob": number}
            assert jax.tree.leaves(state_struct(agent)) == ([memory] * 2 if core == "lstm" else [])
assert not xla_bridge.backends_are_initialized()
assert "tensorflow" not in sys.modules
"""


def test_structs_make_no_backend_and_import_no_tensorflow():
    done = subprocess.run(
        [sys.executable, "-c", STRUCTS], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
