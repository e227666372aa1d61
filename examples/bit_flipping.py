"""Goals and hindsight: flip bits until they match the goal.

Random flips never reach the goal, so plain DQN only ever sees one reward; with hindsight it learns
from the states that it did reach (Andrychowicz et al. 2017, https://arxiv.org/abs/1707.01495).

distrl train --experiment=examples/bit_flipping.py --topology=single_process
distrl train --experiment=examples/bit_flipping.py:without_hindsight --topology=single_process
"""

import functools

import dm_env
import jax.numpy as jnp
import numpy as np
from dm_env import specs

from distrl.agents.dqn import DQNConfig
from distrl.agents.exploration import EpsilonSchedule
from distrl.envs import PythonEnvironment
from distrl.experiment import ActorsConfig, Experiment, LearnerConfig
from distrl.goal import Goal
from distrl.replay.config import ReplayConfig
from distrl.transforms.hindsight import Hindsight

NUM_BITS = 15


class BitFlipping(dm_env.Environment):
    """Action i flips bit i. Reward 0 and termination at the goal, else -1; with a time limit."""

    def __init__(self, seed: int, num_bits: int = NUM_BITS):
        self._random = np.random.default_rng(seed)
        self._num_bits = num_bits

    def reset(self) -> dm_env.TimeStep:
        self._bits, self._goal = self._random.integers(2, size=(2, self._num_bits))
        if self._reached():
            return self.reset()
        self._steps, self._success = 0, -1
        return dm_env.restart(self._observe())

    def step(self, action: np.ndarray) -> dm_env.TimeStep:
        self._bits[int(action)] ^= 1
        self._steps += 1
        if self._reached():
            self._success = 1
            return dm_env.termination(0.0, self._observe())
        if self._steps == self._num_bits:
            self._success = 0
            return dm_env.truncation(-1.0, self._observe())
        return dm_env.transition(-1.0, self._observe())

    def _reached(self) -> bool:
        return bool((self._bits == self._goal).all())

    def _observe(self) -> dict[str, np.ndarray]:
        achieved = self._bits.astype(np.float32)
        return {"achieved_goal": achieved, "desired_goal": self._goal.astype(np.float32)}

    def observation_spec(self) -> dict[str, specs.Array]:
        bits = specs.BoundedArray((self._num_bits,), np.float32, 0, 1)
        return {"achieved_goal": bits, "desired_goal": bits}

    def action_spec(self) -> specs.DiscreteArray:
        return specs.DiscreteArray(self._num_bits, np.int32, "bit")

    def reward_spec(self) -> specs.Array:
        return specs.Array((), np.float32, "reward")

    def env_info_spec(self) -> dict[str, specs.Array]:
        return {"success": specs.Array((), np.int8, "success")}

    def env_info(self) -> dict[str, np.ndarray]:
        return {"success": np.int8(self._success)}


def reward(achieved: jnp.ndarray, desired: jnp.ndarray) -> jnp.ndarray:
    """Returns the environment's reward for goals [..., num_bits]."""
    return jnp.where((achieved == desired).all(axis=-1), 0.0, -1.0)


def experiment(hindsight: bool = True, num_bits: int = NUM_BITS) -> Experiment:
    """Returns the experiment that `--experiment=examples/bit_flipping.py` trains."""
    return Experiment(
        PythonEnvironment(functools.partial(BitFlipping, num_bits=num_bits)),
        DQNConfig(discount=0.95, epsilon=EpsilonSchedule(end=0.02, steps=128_000)),
        ReplayConfig("uniform", num_bits + 1, 10_000, 100, samples_per_insert=4),
        ActorsConfig(num_actors=2, num_envs=8),
        learner=LearnerConfig(batch_size=16),
        goal=Goal(mean_return=-7.2, max_trained_steps=1_000_000),
        transforms=(Hindsight(reward, ends_at_goal=True),) if hindsight else (),
    )


def without_hindsight() -> Experiment:
    """Returns the same experiment with plain DQN, for comparison."""
    return experiment(hindsight=False)
