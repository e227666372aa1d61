"""Priorities: from an agent's errors, through the learner, to what a table samples."""

import jax
import numpy as np
import pytest
from dm_env import specs as dm_specs

from distrl import specs
from distrl.agents.agent import PRIORITIES
from distrl.agents.dqn import DQNConfig
from distrl.agents.losses.prioritized import importance_weights, unroll_priorities
from distrl.agents.networks import NetworkConfig
from distrl.agents.structs import extras_struct, state_struct
from distrl.learner import Learner
from distrl.replay.config import ReplayConfig
from distrl.replay.local.buffer import LocalReplayBuffer
from distrl.replay.local.table import LocalTable
from distrl.specs import EnvironmentSpec
from distrl.transforms.agent import TransformedAgent
from distrl.transforms.rewards import RewardScale
from distrl.types import Inference, StepType

FIRST, MID, LAST = int(StepType.FIRST), int(StepType.MID), int(StepType.LAST)
KEY = np.array([0, 1], np.uint32)
SPEC = EnvironmentSpec(dm_specs.Array((4,), np.float32), dm_specs.DiscreteArray(3, np.int32))
CONFIG = DQNConfig(network=NetworkConfig(hidden_sizes=(8,)), discount=0.5, huber_delta=None)
T, BATCH, STREAMS = 3, 6, 5
REPLAY = ReplayConfig("prioritized", T, 10, 10, priority_exponent=0.5)


def test_the_priority_of_an_unroll_by_hand():
    error = np.array([[1, -5, 7], [-3, 0, 8], [2, 1, 9]], np.float32)
    real = np.array([[True, True, False], [True, False, False], [True, True, False]])
    want = [0.9 * 3 + 0.1 * 2, 0.9 * 5 + 0.1 * 3, 0]
    np.testing.assert_allclose(jax.jit(unroll_priorities)(error, real), want, rtol=1e-6)
    one = unroll_priorities(np.array([[-2.0, 3.0]], np.float32), np.array([[True, True]]))
    np.testing.assert_allclose(one, [2, 3], rtol=1e-6)


def test_an_unroll_without_an_error_may_be_sampled_again():
    error = np.array([[0, 0, 1e-9, np.nan], [0, 7, 0, 0]], np.float32)
    real = np.array([[True, False, True, True], [True, False, False, True]])
    got = jax.jit(unroll_priorities)(error, real)
    np.testing.assert_array_equal(got, np.array([1e-6, 0, 1e-6, np.nan], np.float32))


def test_importance_weights_by_hand():
    probability = np.array([0.1, 0.4, 0.1], np.float32)
    np.testing.assert_allclose(importance_weights(probability, 0.5), [1, 0.5, 1], rtol=1e-6)
    np.testing.assert_allclose(importance_weights(probability, 0.0), [1, 1, 1])


def make_replay(agent, config=REPLAY):
    struct = specs.trajectory_struct(SPEC, extras_struct(agent), state_struct(agent))
    table = LocalTable(struct, config, BATCH, seed=1)
    return LocalReplayBuffer(table, struct, config, BATCH), table


def fill(replay, unrolls):
    """Random steps of STREAMS streams, with both kinds of ends, until each has `unrolls`."""
    rng = np.random.default_rng(0)
    streams = np.arange(STREAMS, dtype=np.int32)
    step_type = np.full(STREAMS, FIRST, np.int8)
    for _ in range(unrolls * T + 1):
        timestep = specs.zeros(specs.timestep_struct(SPEC), STREAMS)._replace(
            step_type=step_type,
            reward=np.where(step_type == FIRST, 0, rng.normal(size=STREAMS)).astype(np.float32),
            discount=np.where(step_type == LAST, rng.integers(2, size=STREAMS), 1).astype("f4"),
            observation=rng.normal(size=(STREAMS, 4)).astype(np.float32),
        )
        action = rng.integers(3, size=STREAMS, dtype=np.int32)
        replay.add(streams, timestep, Inference(action, (), 0))
        ends = np.where(rng.random(STREAMS) < 0.4, LAST, MID)
        step_type = np.where(step_type == LAST, FIRST, ends).astype(np.int8)


def priorities_by_hand(agent, params, target, batch):
    """DQN's own, of each unroll, by loops."""
    step = batch.timestep
    online, aim = (
        np.asarray(agent.network.unroll(p, step, ())[0], np.float64) for p in (params, target)
    )
    priorities = []
    for b in range(batch.probability.size):
        errors = []
        for t in range(T):
            if step.step_type[t, b] == LAST:
                continue
            value = aim[t + 1, b, online[t + 1, b].argmax()]
            if step.step_type[t + 1, b] == LAST and step.discount[t + 1, b] == 0:
                value = 0
            want = step.reward[t + 1, b] + 0.5 * value
            errors.append(abs(want - online[t, b, batch.action[t, b]]))
        priorities.append(0.9 * max(errors) + 0.1 * np.mean(errors) if errors else 0)
    return np.array(priorities)


def test_dqn_gives_its_errors_as_priorities():
    agent = CONFIG.make(SPEC)
    replay, _ = make_replay(agent)
    fill(replay, 3)
    params = agent.initial_params(KEY)
    other = agent.initial_params(np.array([0, 2], np.uint32))["network"]
    learner_state = agent.initial_learner_state(params)._replace(target=other)
    for _ in range(5):
        batch = replay.sample(1.0).trajectory
        _, logs = jax.jit(agent.compute_gradients)(params, learner_state, batch)
        want = priorities_by_hand(agent, params["network"], other, batch)
        np.testing.assert_allclose(logs[PRIORITIES], want, rtol=1e-5, atol=1e-6)
        assert len(np.unique(want)) > 1


@pytest.mark.parametrize("transformed", [False, True])
def test_the_learner_sends_them_with_the_keys_that_they_belong_to(transformed, monkeypatch):
    agent = CONFIG.make(SPEC)
    if transformed:
        agent = TransformedAgent(agent, (RewardScale(0.5),), SPEC)
    replay, _ = make_replay(agent)
    fill(replay, 2)
    learner = Learner(agent, replay, seed=0)
    sent = []
    monkeypatch.setattr(replay, "update_priorities", lambda k, p: sent.append((k, p)))
    params = learner.variables[1]
    state = agent.initial_learner_state(params)
    want = []
    for _ in range(4):
        sample = replay.sample(1.0)
        params, state, logs = jax.jit(agent.learner_step)(params, state, sample.trajectory)
        want.append((sample.key, np.asarray(logs[PRIORITIES])))
        learner.update(sample)
    assert len(sent) == 3  # each with the update after its own
    for (keys, priorities), (want_keys, want_priorities) in zip(sent, want):
        np.testing.assert_array_equal(keys, want_keys)
        np.testing.assert_allclose(priorities, want_priorities, rtol=1e-5)
    assert PRIORITIES not in learner.take_report()


@pytest.mark.full
def test_they_change_what_the_table_samples():
    agent = CONFIG.make(SPEC)
    replay, _ = make_replay(agent)
    fill(replay, 2)
    learner = Learner(agent, replay, seed=0)
    began = learner.state()
    by_key = {}
    for _ in range(12):  # every unroll's, by the same parameters
        sample = replay.sample(1.0)
        _, logs = jax.jit(agent.compute_gradients)(began.params, began.agent, sample.trajectory)
        by_key.update(zip(sample.key.tolist(), np.asarray(logs[PRIORITIES]).tolist()))
        learner.restore(began)
        learner.update(sample)
    assert len(by_key) == 10
    learner.update(replay.sample(1.0))  # sends those of the twelfth
    weights = {key: priority**0.5 for key, priority in by_key.items()}
    total = sum(weights.values())
    for _ in range(5):
        sample = replay.sample(1.0)
        want = [weights[key] / total for key in sample.key.tolist()]
        np.testing.assert_allclose(sample.trajectory.probability, want, rtol=1e-4)
    assert max(weights.values()) > 1.5 * min(weights.values())


@pytest.mark.parametrize("table", ["uniform", "queue"])
def test_other_tables_are_left_alone(table, monkeypatch):
    agent = CONFIG.make(SPEC)
    config = ReplayConfig(table, unroll_length=REPLAY.unroll_length, max_size=20)
    replay, _ = make_replay(agent, config)
    fill(replay, 4)
    learner = Learner(agent, replay, seed=0)
    monkeypatch.setattr(replay, "update_priorities", lambda *_: pytest.fail("not asked for"))
    for _ in range(3):
        learner.step()
    assert PRIORITIES not in learner.take_report()
