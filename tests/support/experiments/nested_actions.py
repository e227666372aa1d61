"""An environment whose action has four parts, each of which must fit the observation."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from distrl.agents.a2c import A2CConfig
from distrl.agents.defaults import AlgorithmConfig
from distrl.agents.impala import IMPALAConfig
from distrl.agents.ppo import PPOConfig
from distrl.envs import PythonEnvironment
from distrl.experiment import Experiment, Goal

STEPS = 8


class Matching(gymnasium.Env):
    """Each of the parts is worth a quarter of a step's reward, which is 1 at most."""

    observation_space = spaces.MultiBinary(3)
    action_space = spaces.Dict({
        "aim": spaces.Box(-2, 2, (1,)),
        "keys": spaces.Tuple((
            spaces.MultiDiscrete([3, 2]),
            spaces.Discrete(3, start=5),
        )),
    })  # fmt: skip

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._steps = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        (first, second), third = action["keys"]
        hits = [first == self._kind, second == self._kind % 2, third - 5 == (self._kind + 1) % 3]
        near = 1 - abs(float(action["aim"][0]) - (self._kind - 1)) / 3
        self._steps += 1
        reward = (sum(map(float, hits)) + near) / 4
        return self._observe(), reward, self._steps == STEPS, False, {}

    def _observe(self) -> Any:
        self._kind = int(self.np_random.integers(3))
        return np.eye(3, dtype=np.int8)[self._kind]


def _experiment(agent: AlgorithmConfig) -> Experiment:
    environment = PythonEnvironment(Matching)
    return Experiment(environment, agent, goal=Goal(mean_return=0.9 * STEPS, max_seconds=60.0))


ppo = _experiment(PPOConfig(learning_rate=3e-3))
a2c = _experiment(A2CConfig(learning_rate=3e-3))
impala = _experiment(IMPALAConfig(learning_rate=3e-3))
