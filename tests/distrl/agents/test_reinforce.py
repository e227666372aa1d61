"""REINFORCE: returns and loss against NumPy, what may not matter, refusals, learning."""

import dataclasses
import threading

import jax
import numpy as np
import pytest
from dm_env import specs as dm_specs

from distrl import envs, presets
from distrl.agents.a2c import A2CConfig
from distrl.agents.networks import NetworkConfig
from distrl.agents.reinforce import ReinforceConfig
from distrl.config import ActorsConfig, LearnerConfig
from distrl.errors import ConfigError
from distrl.experiment import Experiment
from distrl.goal import Goal
from distrl.programs.single_process import single_process
from distrl.programs.single_process_parts import SingleProcess
from distrl.replay.config import ReplayConfig
from distrl.specs import EnvironmentSpec
from distrl.types import StepType

FIRST, MID, LAST = int(StepType.FIRST), int(StepType.MID), int(StepType.LAST)
KEY = np.array([0, 1], np.uint32)
SPEC = EnvironmentSpec(dm_specs.Array((4,), np.float32), dm_specs.DiscreteArray(3, np.int32))
SMALL = NetworkConfig(hidden_sizes=(16,))
LENGTHS = (6, 3, 1, 4)  # transitions of the episodes, in unrolls of at most 6


def whole_episodes(batch):
    """The batch as episodes of LENGTHS, some ended by a time limit, padded by their last step."""
    step_type = np.full((7, len(LENGTHS)), MID, np.int8)
    discount = np.ones((7, len(LENGTHS)), np.float32)
    step_type[0] = FIRST
    leaves, structure = jax.tree.flatten(batch.timestep.observation)
    observation = [leaf.copy() for leaf in leaves]
    reward = np.where(batch.timestep.reward == 0, 0.5, batch.timestep.reward)
    for column, length in enumerate(LENGTHS):
        step_type[length:, column] = LAST
        discount[length:, column] = column % 2
        reward[length:, column] = reward[length, column]
        for leaf in observation:
            leaf[length:, column] = leaf[length, column]
    timestep = batch.timestep._replace(
        step_type=step_type,
        discount=discount,
        reward=reward.astype(np.float32),
        observation=structure.unflatten(observation),
    )
    return batch._replace(timestep=timestep)


def by_hand(config, batch, logits, value):
    """Policy and value loss, summed over each episode step by step, and all returns."""
    reward = batch.timestep.reward.astype(np.float64)
    discount = batch.timestep.discount.astype(np.float64)
    logits = np.asarray(logits, np.float64)
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    terms = []
    for column, length in enumerate(LENGTHS):
        for t in range(length):
            total = weight = 0.0
            for k in range(t, length):
                weight = weight * config.discount * discount[k, column] if k > t else 1.0
                total += weight * reward[k + 1, column]
            chosen = log_probs[t, column, batch.action[t, column]]
            terms.append((total, float(value[t, column]), chosen))
    returns, values, chosen = np.array(terms).T
    advantage = returns - values if config.baseline else returns
    weight = advantage
    if config.normalize_advantages:
        weight = (advantage - advantage.mean()) / advantage.std()
    value_loss = 0.5 * np.mean((returns - values) ** 2) if config.baseline else 0.0
    return -np.mean(weight * chosen), value_loss, returns.mean()


@pytest.mark.parametrize(
    "settings",
    [
        {"normalize_advantages": False},
        {"baseline": False, "normalize_advantages": False, "discount": 0.7},
        {"discount": 1.0},
    ],
)
def test_the_loss_equals_numpys(settings, on_policy_batch):
    agent = ReinforceConfig(**{"network": SMALL, **settings}).make(SPEC)
    params = jax.tree.map(lambda x: x + 0.1, agent.initial_params(KEY))
    batch = whole_episodes(on_policy_batch(agent, params, batch_size=len(LENGTHS)))
    gradient = jax.jit(jax.value_and_grad(agent.loss, has_aux=True))
    (loss, logs), grads = gradient(params, batch)
    logits, value, _ = jax.jit(agent.network.unroll)(params, batch.timestep, batch.state)
    want = by_hand(agent.config, batch, logits, value)
    got = (logs["policy_loss"], logs["value_loss"], logs["return"])
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(loss, want[0] + 0.5 * want[1], rtol=1e-4, atol=1e-5)
    # What pads an episode, and whether it ended truly, changes nothing.
    timestep = batch.timestep
    padding = np.cumsum(timestep.step_type == LAST, axis=0) > 1
    changed = timestep._replace(
        discount=np.where(timestep.step_type == LAST, 1 - timestep.discount, timestep.discount),
        reward=np.where(padding, 99, timestep.reward).astype(np.float32),
        observation=np.where(padding[..., None], 7, timestep.observation).astype(np.float32),
    )
    _, others = gradient(params, batch._replace(timestep=changed))
    jax.tree.map(np.testing.assert_array_equal, grads, others)
    # A lost life ends the returns before it, though the episode goes on.
    lives = timestep.discount.copy()
    lives[1, 0] = lives[2, 2] = 0
    batch = batch._replace(timestep=timestep._replace(discount=lives))
    (_, logs), _ = gradient(params, batch)
    want = by_hand(agent.config, batch, logits, value)
    got = (logs["policy_loss"], logs["value_loss"], logs["return"])
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def experiment(**replay):
    settings = {"unroll_length": 500, "max_size": 16, "whole_episodes": True, **replay}
    return Experiment(
        envs.make("CartPole-v1"),
        ReinforceConfig(SMALL),
        ReplayConfig(**settings),
        ActorsConfig(num_envs=4),
        learner=LearnerConfig(batch_size=4),
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: experiment(whole_episodes=False), "Reinforce needs all rewards that follow"),
        (
            lambda: experiment(unroll_length=100),
            "replay.unroll_length=100: episodes of CartPole-v1 may have 500 steps",
        ),
        (
            lambda: experiment(table="uniform"),
            "replay.whole_episodes is for a queue, not for replay.table=uniform",
        ),
        (
            lambda: dataclasses.replace(experiment(), agent=A2CConfig()),
            "for algorithms that learn from whole episodes, such as REINFORCE, and A2C",
        ),
        (lambda: dataclasses.replace(experiment(), lockstep=True), "lockstep: replay.whole_epis"),
        (lambda: ReinforceConfig(baseline=1), "agent.baseline: expected True or False"),
    ],
)
def test_what_would_be_silently_wrong_is_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_batches_are_whole_episodes():
    with SingleProcess(experiment(), printer=lambda line: None) as parts:
        seen = []
        (task,) = parts.tasks.values()
        task.learner.update = lambda sample: seen.append(sample.trajectory)
        for _ in range(3):
            assert parts.run_once()
    for trajectory in seen:
        step_type = trajectory.timestep.step_type
        ends = np.argmax(step_type == LAST, axis=0)
        for column, end in enumerate(ends):
            assert step_type[0, column] == FIRST
            assert (step_type[1:end, column] == MID).all()
            assert (step_type[end:, column] == LAST).all()
            assert (trajectory.timestep.reward[1:end, column] == 1).all()


@pytest.mark.full
@pytest.mark.parametrize("baseline", [True, False])
def test_learns_cartpole(baseline):
    made = presets.experiment("CartPole-v1", "reinforce", seed=1)
    made = dataclasses.replace(
        made,
        agent=dataclasses.replace(made.agent, baseline=baseline),
        replay=dataclasses.replace(made.replay, unroll_length=500),
        goal=Goal(mean_return=150.0, window=50, max_env_steps=150_000),
    )
    ended = single_process(made, stop=threading.Event(), printer=lambda line: None)
    assert ended is not None and ended[1] and "150" in ended[0], ended
