"""Your own experiment: walk to the right end of a corridor.

distrl train --experiment=examples/corridor.py --topology=heavy_env
"""

import dm_env
import numpy as np
from dm_env import specs

from distrl.agents.impala import IMPALAConfig
from distrl.envs import PythonEnvironment
from distrl.experiment import ActorsConfig, Experiment, LearnerConfig
from distrl.goal import Goal

LENGTH, TIME_LIMIT = 8, 40


class Corridor(dm_env.Environment):
    """Actions: 0 left, 1 right. Reward 1 and termination at the right end; with a time limit."""

    def __init__(self, seed: int):
        self._random = np.random.default_rng(seed)

    def reset(self) -> dm_env.TimeStep:
        self._position, self._steps = int(self._random.integers(LENGTH // 2)), 0
        return dm_env.restart(self._observe())

    def step(self, action: np.ndarray) -> dm_env.TimeStep:
        self._position = max(0, self._position + (1 if action else -1))
        self._steps += 1
        if self._position == LENGTH - 1:
            return dm_env.termination(1.0, self._observe())  # discount 0: the episode is over
        if self._steps == TIME_LIMIT:
            return dm_env.truncation(0.0, self._observe())  # discount 1: cut off
        return dm_env.transition(0.0, self._observe())

    def _observe(self) -> np.ndarray:
        return np.eye(LENGTH, dtype=np.float32)[self._position]

    def observation_spec(self) -> specs.Array:
        return specs.Array((LENGTH,), np.float32, "place")

    def action_spec(self) -> specs.DiscreteArray:
        return specs.DiscreteArray(2, np.int32, "direction")

    def reward_spec(self) -> specs.Array:
        return specs.Array((), np.float32, "reward")


experiment = Experiment(
    PythonEnvironment(Corridor),
    IMPALAConfig(discount=0.95),
    actors=ActorsConfig(num_actors=2, num_envs=8),
    learner=LearnerConfig(batch_size=16),
    goal=Goal(mean_return=0.99),
)
