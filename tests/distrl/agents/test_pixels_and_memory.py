"""SAC, TD3 and DDPG learn what they see in pixels, and what they remember."""

import dataclasses

import jax
import numpy as np
import pytest
from dm_env import specs as dm_specs

from distrl.agents.ddpg import DDPGConfig
from distrl.agents.networks import NetworkConfig
from distrl.agents.sac import SACConfig
from distrl.agents.td3 import TD3Config
from distrl.learning.random_batches import random_batch
from distrl.specs import EnvironmentSpec
from distrl.types import StepType, TimeStep

LAST = int(StepType.LAST)
KEY = np.array([0, 1], np.uint32)


class Cue:
    """Episodes of three actions, of which the last should be the cue, shown at the start or always.

    The reward of the last action is minus the square of its distance from the cue.
    """

    def __init__(self, pixels):
        """Args: pixels: an image shows the cue, at every step; else a number, at the first."""
        self.pixels = pixels
        self._form = None  # a batch with the right fields
        observation = dm_specs.Array((1,), np.float32)
        if pixels:
            observation = dm_specs.BoundedArray((8, 8, 1), np.uint8, 0, 255)
        action = dm_specs.BoundedArray((1,), np.float32, -1.0, 1.0)
        self.spec = EnvironmentSpec(observation, action)

    def observe(self, cue, t):
        if not self.pixels:
            return np.where(t == 0, cue, 0.0)[:, None].astype(np.float32)
        image = np.zeros((len(cue), 8, 8, 1), np.uint8)
        image[np.arange(len(cue)), :, np.where(cue < 0, 1, 6)] = 255
        return image

    def batch(self, agent, rng, size):
        """Whole episodes of uniformly random actions."""
        cue = rng.choice([-0.8, 0.8], size)
        action = rng.uniform(-1, 1, (4, size, 1)).astype(np.float32)
        reward = np.zeros((4, size), np.float32)
        reward[3] = -np.square(action[2, :, 0] - cue)
        self._form = self._form or random_batch(agent, 3, size)
        batch = self._form
        kinds = np.repeat(np.array([[0], [1], [1], [2]], np.int8), size, 1)
        timestep = batch.timestep._replace(
            step_type=kinds,
            reward=reward,
            discount=(kinds != LAST).astype(np.float32),
            observation=np.stack([self.observe(cue, t) for t in range(4)]),
            prev_action=np.concatenate([np.zeros_like(action[:1]), action[:-1]]),
        )
        state = agent.initial_state(size)
        return batch._replace(
            timestep=timestep, action=action, state=state,
            probability=np.ones(size, np.float32),
        )  # fmt: skip

    def mean_return(self, agent, params):
        cue = np.array([-0.8, 0.8])
        step = jax.jit(lambda timestep, state: agent.actor_step(KEY, params, timestep, state, True))
        state, action = agent.initial_state(2), np.zeros((2, 1), np.float32)
        for t in range(3):
            timestep = TimeStep(
                np.full(2, min(t, 1), np.int8), np.zeros(2, np.float32), np.ones(2, np.float32),
                self.observe(cue, t), action, np.arange(2, dtype=np.int32),
            )  # fmt: skip
            output, state = step(timestep, state)
            action = np.asarray(output.action)
        return float(np.mean(-np.square(action[:, 0] - cue)))


@pytest.mark.full
@pytest.mark.parametrize("pixels", [True, False])
@pytest.mark.parametrize(
    "config",
    [
        SACConfig((32,), learning_rate=3e-3, target_tau=0.05, initial_temperature=0.02),
        TD3Config((32,), policy_learning_rate=3e-3, critic_learning_rate=3e-3, target_tau=0.05),
        DDPGConfig((32,), policy_learning_rate=3e-3, critic_learning_rate=3e-3, target_tau=0.05),
    ],
    ids=["sac", "td3", "ddpg"],
)
def test_it_learns_what_is_seen_in_pixels_and_what_is_remembered(config, pixels):
    """Without seeing or remembering the cue, no policy earns more than -0.64 on average."""
    task = Cue(pixels)
    network = NetworkConfig(hidden_sizes=(16,), activation="relu", core_size=16)
    if not pixels:
        network = dataclasses.replace(network, core="lstm")
    agent = dataclasses.replace(config, network=network).make(task.spec)
    params = jax.jit(agent.initial_params)(KEY)
    state, step = agent.initial_learner_state(params), jax.jit(agent.learner_step)
    rng = np.random.default_rng(0)
    for _ in range(300):
        params, state, _ = step(params, state, task.batch(agent, rng, 32))
    assert task.mean_return(agent, params) > -0.1


@pytest.mark.full
def test_without_memory_the_cue_is_not_remembered():
    task = Cue(pixels=False)
    config = TD3Config((32,), policy_learning_rate=3e-3, critic_learning_rate=3e-3, target_tau=0.05)
    agent = config.make(task.spec)
    params = jax.jit(agent.initial_params)(KEY)
    state, step = agent.initial_learner_state(params), jax.jit(agent.learner_step)
    rng = np.random.default_rng(0)
    for _ in range(300):
        params, state, _ = step(params, state, task.batch(agent, rng, 32))
    assert -1.0 < task.mean_return(agent, params) < -0.55
