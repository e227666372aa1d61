"""Windows of episodes and batches of on-policy experience, for the agents' tests."""

import jax
import numpy as np
import pytest

from distrl import specs
from distrl.learning.random_batches import random_windows
from distrl.types import StepType, Trajectory

FIRST, MID, LAST = int(StepType.FIRST), int(StepType.MID), int(StepType.LAST)


def make_on_policy_batch(agent, params, length=6, batch_size=8, seed=0):
    """[T + 1, B] of random observations and rewards, with actions of `params`."""
    rng = np.random.default_rng(seed)
    step_type, discount = random_windows(rng, length, batch_size)
    shape = step_type.shape
    timestep = specs.zeros(specs.timestep_struct(agent.env_spec), *shape)
    timestep = timestep._replace(
        step_type=step_type,
        discount=discount,
        reward=np.where(step_type == FIRST, 0, rng.normal(size=shape)).astype(np.float32),
        observation=rng.normal(size=timestep.observation.shape).astype(np.float32),
    )
    state = jax.tree.map(
        lambda x: rng.normal(size=x.shape).astype(np.float32), agent.initial_state(batch_size)
    )

    @jax.jit
    def play(params, timestep, state):
        policy, _, _ = agent.network.unroll(params, timestep, state)
        key = np.array([0, seed], np.uint32)
        return agent.network.distribution.sample_with_log_prob(key, policy)

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


def gae_of_stream(step_type, reward, discount, value, gamma, lambda_):
    """Advantages of one stream [T], each a sum of the temporal differences that follow it.

    NaN at what is no transition. `discount` is the environment's.
    """
    length = len(step_type) - 1
    advantages = np.full(length, np.nan)
    for t in range(length):
        if step_type[t] == LAST:
            continue
        total, factor = 0.0, 1.0
        for now in range(t, length):
            bootstraps = step_type[now + 1] != LAST or discount[now + 1] == 1
            after = gamma * float(value[now + 1]) if bootstraps else 0.0
            total += factor * (float(reward[now + 1]) + after - float(value[now]))
            factor *= gamma * lambda_
            if step_type[now + 1] == LAST:
                break
        advantages[t] = total
    return advantages


def gae_of_batch(step_type, reward, discount, value, gamma, lambda_):
    """`gae_of_stream` of each [T, B]."""
    columns = zip(*(np.asarray(x).T for x in (step_type, reward, discount, value)), strict=True)
    return np.stack([gae_of_stream(*column, gamma, lambda_) for column in columns], axis=1)


@pytest.fixture
def windows():
    return random_windows


@pytest.fixture
def on_policy_batch():
    return make_on_policy_batch


@pytest.fixture
def gae_by_hand():
    return gae_of_batch
