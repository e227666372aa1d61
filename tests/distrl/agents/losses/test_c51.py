"""DQN with distributions over returns: projection and loss against loops, and what it acts by."""

import jax
import numpy as np
import pytest
from dm_env import specs as dm_specs

from distrl import specs
from distrl.agents.agent import PRIORITIES
from distrl.agents.dqn import DQNConfig
from distrl.agents.losses.returns import n_step_bootstrap
from distrl.agents.networks import NetworkConfig
from distrl.errors import ConfigError
from distrl.learning.random_batches import random_batch
from distrl.specs import EnvironmentSpec
from distrl.types import StepType
from tests.support.selection import full

FIRST, MID, LAST = int(StepType.FIRST), int(StepType.MID), int(StepType.LAST)
SPEC = EnvironmentSpec(dm_specs.Array((4,), np.float32), dm_specs.DiscreteArray(3, np.int32))
T, B, K = 6, 20, 7
LOW, HIGH = -2.0, 3.0
ATOMS = np.linspace(LOW, HIGH, K)


def make(**settings):
    config = DQNConfig(
        network=NetworkConfig(hidden_sizes=(16,)), discount=0.9, num_atoms=K,
        value_min=LOW, value_max=HIGH, **settings,
    )  # fmt: skip
    agent = config.make(SPEC)
    params, other = (agent.initial_params(np.array([0, k], np.uint32)) for k in (1, 2))
    grow = lambda x: 3 * x  # noqa: E731
    return agent, *(jax.tree.map(grow, p["network"]) for p in (params, other))


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def projected(returns, probs):
    """Each probability is shared by the two atoms around its return (C51's algorithm 1)."""
    out = np.zeros(K)
    for value, p in zip(np.clip(returns, LOW, HIGH), probs):
        place = (value - LOW) / (HIGH - LOW) * (K - 1)
        low = min(int(place), K - 2)
        out[low] += p * (1 - (place - low))
        out[low + 1] += p * (place - low)
    return out


def numpy_loss(agent, online, target, batch, discount=None):
    step, config = batch.timestep, agent.config
    discount = step.discount if discount is None else discount
    q, aim = (
        softmax(np.asarray(agent.network.unroll(p, step, ())[0], float)) for p in (online, target)
    )
    assert q.shape == (T + 1, B, 3, K)
    choice = ((q if config.double else aim) @ ATOMS).argmax(-1)
    losses, priorities = [], []
    for b in range(B):
        unroll_losses = []
        for t in range(T):
            if step.step_type[t, b] == LAST:
                continue
            total, factor, now = 0.0, 1.0, t
            while (
                now < T and now - t < config.n_step and (now == t or step.step_type[now, b] != LAST)
            ):
                now += 1
                total += factor * step.reward[now, b]
                factor *= 0.9
            if step.step_type[now, b] == LAST and discount[now, b] == 0:
                factor = 0
            want = projected(total + factor * ATOMS, aim[now, b, choice[now, b]])
            log_q = np.log(q[t, b, batch.action[t, b]])
            unroll_losses.append((want * (np.log(np.maximum(want, 1e-30)) - log_q)).sum())
        losses += unroll_losses
        priorities.append(
            0.9 * max(unroll_losses) + 0.1 * np.mean(unroll_losses) if unroll_losses else 0
        )
    return np.mean(losses), priorities


@pytest.mark.parametrize(
    "settings", [full({}), full({"n_step": 3, "dueling": True}), {"double": False}]
)
def test_the_loss_equals_numpys(settings):
    agent, online, target = make(**settings)
    batch = random_batch(agent, T, B)
    loss, logs = jax.jit(agent.loss)(online, target, batch)
    want, priorities = numpy_loss(agent, online, target, batch)
    np.testing.assert_allclose(loss, want, rtol=1e-4)
    np.testing.assert_allclose(logs[PRIORITIES], priorities, rtol=1e-3, atol=1e-5)
    no_limits = np.where(batch.timestep.step_type == LAST, 0, 1)
    assert abs(numpy_loss(agent, online, target, batch, no_limits)[0] - want) > 1e-4
    stacked = jax.tree.map(lambda x: np.stack([x, x]), batch)
    mapped, _ = jax.vmap(agent.loss, (None, None, 0))(online, target, stacked)
    np.testing.assert_allclose(mapped, [loss, loss], rtol=1e-5)
    gradient = jax.grad(agent.loss, (0, 1), has_aux=True)
    (of_online, of_target), _ = jax.jit(gradient)(online, target, batch)
    assert all(np.any(g) for g in jax.tree.leaves(of_online))
    assert not any(np.any(g) for g in jax.tree.leaves(of_target))


def test_ends_of_returns_by_hand():
    #            F    M    L(limit) F    L(true) F   M
    step_type = np.array([FIRST, MID, LAST, FIRST, LAST, FIRST, MID], np.int8)[:, None]
    reward = np.array([0, 1, 2, 0, 3, 0, 4], np.float32)[:, None]
    discount = 0.5 * np.array([1, 1, 1, 1, 0, 1, 1], np.float32)[:, None]
    ends = [
        np.asarray(x)[[0, 1, 3, 5], 0] for x in n_step_bootstrap(step_type, reward, discount, 2)
    ]
    np.testing.assert_allclose(ends[0], [2, 2, 3, 4])
    np.testing.assert_allclose(ends[1], [0.25, 0.5, 0, 0.5])
    np.testing.assert_array_equal(ends[2], [2, 2, 4, 6])


def test_it_acts_by_the_mean():
    agent, online, _ = make()
    timestep = specs.zeros(specs.timestep_struct(SPEC), 50)
    observation = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    timestep = timestep._replace(observation=observation)
    outputs, _ = agent.network.step(online, timestep, ())
    want = (softmax(np.asarray(outputs, float)) @ ATOMS).argmax(-1)
    params = {"network": online, "epsilon": np.float32(1)}
    output, _ = agent.actor_step(np.zeros(2, np.uint32), params, timestep, (), evaluation=True)
    np.testing.assert_array_equal(output.action, want)
    assert len(set(want.tolist())) > 1


def test_ranges_that_cannot_work_are_refused():
    with pytest.raises(ConfigError, match=r"agent\.value_max: expected a number above value_min=2"):
        DQNConfig(num_atoms=51, value_min=2.0, value_max=2.0)
    with pytest.raises(ConfigError, match=r"agent\.num_atoms: expected a whole number"):
        DQNConfig(num_atoms=0)
    with pytest.raises(ConfigError, match=r"^agent\.num_atoms: expected at most 10000, got 1000"):
        DQNConfig(num_atoms=10**18)
