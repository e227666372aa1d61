"""A gymnasium environment whose step costs a given CPU time. Independent of distrl."""

import time

import gymnasium
import numpy as np


class Spinning(gymnasium.Env):
    """Spins for `step_us` microseconds of its thread's CPU time, then returns an observation.

    CPU time rather than wall clock: processes that share a core would otherwise spin concurrently.
    """

    def __init__(self, step_us: float, pixels: bool = False) -> None:
        """Args:
        step_us: CPU time of a step in microseconds.
        pixels: whether observations are uint8 [84, 84, 4] instead of float32 [4].
        """
        self._seconds = step_us * 1e-6
        self.action_space = gymnasium.spaces.Discrete(2)
        if pixels:
            self.observation_space = gymnasium.spaces.Box(0, 255, (84, 84, 4), np.uint8)
        else:
            self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float32)
        self._observation = np.zeros(self.observation_space.shape, self.observation_space.dtype)
        self._step = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._step = 0
        return self._observation, {}

    def step(self, action):
        end = time.thread_time() + self._seconds
        while time.thread_time() < end:
            pass
        self._step += 1
        self._observation[0] = self._step % 200
        return self._observation, 1.0, self._step >= 1000, False, {}
