"""R2D2: stored state, burn-in and rescaled values against NumPy; see test_dqn for the rest."""

import dataclasses

import jax
import numpy as np
import pytest
from dm_env import specs as dm_specs

from distrl import presets
from distrl.agents.agent import PRIORITIES
from distrl.agents.dqn import DQNConfig
from distrl.agents.networks import NetworkConfig
from distrl.agents.r2d2 import R2D2Config
from distrl.errors import ConfigError
from distrl.learning.random_batches import random_batch
from distrl.specs import EnvironmentSpec
from distrl.types import TIME_FIELDS, StepType
from tests.support.selection import full

LAST = int(StepType.LAST)
SPEC = EnvironmentSpec(dm_specs.Array((4,), np.float32), dm_specs.DiscreteArray(3, np.int32))
NETWORK = NetworkConfig(hidden_sizes=(8,), core="lstm", core_size=6)
SMALL = R2D2Config(network=NETWORK, discount=0.9, n_step=2, burn_in=1)
T, B = 8, 30


def h(x):
    return np.sign(x) * (np.sqrt(np.abs(x) + 1) - 1) + 1e-3 * x


def h_inverse(y):
    """By bisection: nothing of the closed form."""
    low, high = np.full_like(y, -1e4), np.full_like(y, 1e4)
    for _ in range(100):
        middle = (low + high) / 2
        low, high = np.where(h(middle) < y, middle, low), np.where(h(middle) < y, high, middle)
    return (low + high) / 2


def make(config=SMALL):
    """Agent, parameters, other target parameters, and a batch with big rewards and states."""
    agent = config.make(SPEC)
    params, target = (agent.initial_params(np.array([0, k], np.uint32)) for k in (1, 2))
    batch = random_batch(agent, T, B)
    rng = np.random.default_rng(1)
    state = jax.tree.map(lambda x: rng.normal(size=x.shape).astype(np.float32), batch.state)
    timestep = batch.timestep._replace(reward=20 * batch.timestep.reward)
    return (
        agent,
        params["network"],
        target["network"],
        batch._replace(state=state, timestep=timestep),
    )


def numpy_loss(agent, online, target, batch, burn_in):
    """The loss, and the unrolls' priorities, from the outputs of whole unrolls."""
    step, n_step = batch.timestep, agent.config.n_step
    q, aim = (
        np.asarray(agent.network.unroll(p, step, batch.state)[0], float) for p in (online, target)
    )
    losses, priorities = [], []
    for b in range(B):
        errors = []
        for t in range(burn_in, T):
            if step.step_type[t, b] == LAST:
                continue
            total, factor, now = 0.0, 1.0, t
            while now < T and now - t < n_step and (now == t or step.step_type[now, b] != LAST):
                now += 1
                total += factor * step.reward[now, b]
                factor *= 0.9
            if step.step_type[now, b] != LAST or step.discount[now, b] == 1:
                total += factor * h_inverse(aim[now, b, q[now, b].argmax()])
            errors.append(h(total) - q[t, b, batch.action[t, b]])
        losses += [error**2 / 2 for error in errors]
        errors = np.abs(errors)
        priorities.append(0.9 * errors.max() + 0.1 * errors.mean() if len(errors) else 0)
    return np.mean(losses), priorities


@pytest.mark.parametrize("burn_in", [full(0), 1])
def test_the_loss_equals_numpys(burn_in):
    agent, online, target, batch = make(dataclasses.replace(SMALL, burn_in=burn_in))
    loss, logs = jax.jit(agent.loss)(online, target, batch)
    want, priorities = numpy_loss(agent, online, target, batch, burn_in)
    np.testing.assert_allclose(loss, want, rtol=1e-3)
    np.testing.assert_allclose(logs[PRIORITIES], priorities, rtol=1e-3, atol=1e-3)
    stacked = jax.tree.map(lambda x: np.stack([x, x]), batch)
    mapped = jax.vmap(agent.loss, (None, None, 0))(online, target, stacked)[0]
    np.testing.assert_allclose(mapped, [loss, loss], rtol=1e-5)
    # What a mistake would give is not what we give.
    for mistake in (
        batch._replace(state=jax.tree.map(lambda x: np.roll(x, 1, axis=0), batch.state)),
        batch._replace(state=jax.tree.map(np.zeros_like, batch.state)),
        batch._replace(
            timestep=batch.timestep._replace(
                discount=np.where(batch.timestep.step_type == LAST, 0, 1).astype(np.float32)
            )
        ),
    ):
        wrong, wrong_priorities = numpy_loss(agent, online, target, mistake, burn_in)
        assert np.abs(np.array(wrong_priorities) - priorities).max() > 1e-2
        assert abs(wrong - want) > 1e-5


@pytest.mark.full
def test_no_gradient_flows_through_the_burn_in():
    agent, online, _, batch = make()
    gradient = jax.jit(jax.grad(agent.loss, has_aux=True))
    whole, _ = gradient(online, online, batch)
    # The same from the state after the burn-in, as if it had been stored.
    before = jax.tree.map(lambda x: x[:1], batch.timestep)
    _, state = agent.network.unroll(online, before, batch.state)
    rest = {f: jax.tree.map(lambda x: x[1:], getattr(batch, f)) for f in TIME_FIELDS}
    short = dataclasses.replace(SMALL, burn_in=0).make(SPEC)
    alone, _ = jax.jit(jax.grad(short.loss, has_aux=True))(
        online, online, batch._replace(**rest, state=state)
    )
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6), whole, alone)
    assert all(np.any(g) for g in jax.tree.leaves(whole))


def test_what_was_done_in_the_burn_in_is_not_learned_from():
    agent, online, target, batch = make()
    gradient = jax.jit(jax.grad(agent.loss, has_aux=True))
    before, _ = gradient(online, target, batch)
    action = batch.action.copy()
    action[0] = (action[0] + 1) % 3
    after, _ = gradient(online, target, batch._replace(action=action))
    jax.tree.map(np.testing.assert_array_equal, before, after)
    action[1] = (action[1] + 1) % 3
    after, _ = gradient(online, target, batch._replace(action=action))
    assert not all(jax.tree.leaves(jax.tree.map(np.array_equal, before, after)))


def test_what_cannot_work_is_refused():
    with pytest.raises(ConfigError, match="R2D2 needs a memory: expected lstm, got 'none'"):
        R2D2Config(network=NetworkConfig())
    for config in (R2D2Config, DQNConfig):
        with pytest.raises(ConfigError, match=r"agent\.burn_in: expected .* at least 0, got -1"):
            config(burn_in=-1)
    with pytest.raises(ConfigError, match="action: R2D2 takes one DiscreteArray"):
        R2D2Config().make(SPEC._replace(action=dm_specs.BoundedArray((1,), np.float32, -1, 1)))
    pytest.importorskip("envpool")
    experiment = presets.experiment("CartPole-v1", "r2d2")
    with pytest.raises(ConfigError, match=r"agent\.burn_in=24 leaves nothing .* of replay\.unroll"):
        dataclasses.replace(experiment, agent=R2D2Config(burn_in=24))
