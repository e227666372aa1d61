"""Your own gymnasium environment, in worker processes: catch a falling ball.

distrl train --experiment=examples/catch.py --topology=heavy_env
"""

import gymnasium
import numpy as np

from distrl.agents.impala import IMPALAConfig
from distrl.envs import PoolConfig, PythonEnvironment
from distrl.experiment import ActorsConfig, Experiment, LearnerConfig
from distrl.goal import Goal

ROWS, COLUMNS = 10, 5


class Catch(gymnasium.Env):
    """Actions: 0 left, 1 stay, 2 right. Reward 1 for a catch, -1 for a miss, at the bottom row."""

    observation_space = gymnasium.spaces.Box(0, 1, (2 * COLUMNS + 1,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._row, self._ball = 0, int(self.np_random.integers(COLUMNS))
        self._paddle = COLUMNS // 2
        return self._observe(), {}

    def step(self, action):
        self._paddle = int(np.clip(self._paddle + action - 1, 0, COLUMNS - 1))
        self._row += 1
        ended = self._row == ROWS - 1
        caught = self._ball == self._paddle
        reward = (1.0 if caught else -1.0) if ended else 0.0
        return self._observe(), reward, ended, False, {"success": bool(caught)}

    def _observe(self):
        column = np.eye(COLUMNS, dtype=np.float32)
        return np.concatenate([column[self._ball], column[self._paddle], [self._row / ROWS]])


experiment = Experiment(
    PythonEnvironment(Catch, pool=PoolConfig(kind="processes")),
    IMPALAConfig(),
    actors=ActorsConfig(num_actors=2, num_envs=8),
    learner=LearnerConfig(batch_size=16),
    goal=Goal(mean_return=0.95),
)
