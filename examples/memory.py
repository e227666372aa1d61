"""A task that needs memory: name at the end which of two signs was shown at the start.

distrl train --experiment=examples/memory.py:r2d2 --topology=single_process
distrl train --experiment=examples/memory.py:impala --topology=heavy_env
distrl train --experiment=examples/memory.py:feed_forward --config.goal.max_seconds=60

The sign is 20 steps old when it is asked for, and unrolls have 8 transitions, so no unroll contains
both the sign and the answer. An agent can only learn through the recurrent state that is stored
with each unroll. A feed-forward agent guesses: its mean return stays around 0.
"""

import dm_env
import numpy as np
from dm_env import specs

from distrl.agents.exploration import EpsilonSchedule
from distrl.agents.impala import IMPALAConfig
from distrl.agents.networks import NetworkConfig
from distrl.agents.r2d2 import R2D2Config
from distrl.envs import PythonEnvironment
from distrl.experiment import ActorsConfig, AgentConfig, Experiment, LearnerConfig
from distrl.goal import Goal
from distrl.replay.config import ReplayConfig

DELAY, UNROLL = 20, 8


class Recall(dm_env.Environment):
    """Observation: the sign (-1 or 1) at FIRST, else 0; and 1 when the answer is due, else 0.

    Actions: 0 for -1, 1 for 1. Only the last of `DELAY` actions counts: reward 1 or -1, and
    termination.
    """

    def __init__(self, seed: int):
        self._random = np.random.default_rng(seed)

    def reset(self) -> dm_env.TimeStep:
        self._sign, self._steps = int(self._random.choice([-1, 1])), 0
        return dm_env.restart(np.array([self._sign, 0], np.float32))

    def step(self, action: np.ndarray) -> dm_env.TimeStep:
        self._steps += 1
        if self._steps > DELAY:
            right = (1 if action else -1) == self._sign
            return dm_env.termination(1.0 if right else -1.0, np.zeros(2, np.float32))
        return dm_env.transition(0.0, np.array([0, self._steps == DELAY], np.float32))

    def observation_spec(self) -> specs.Array:
        return specs.Array((2,), np.float32, "sign")

    def action_spec(self) -> specs.DiscreteArray:
        return specs.DiscreteArray(2, np.int32, "sign")

    def reward_spec(self) -> specs.Array:
        return specs.Array((), np.float32, "reward")


def _experiment(agent: AgentConfig, replay: ReplayConfig, batch_size: int) -> Experiment:
    return Experiment(
        PythonEnvironment(Recall),
        agent,
        replay,
        ActorsConfig(num_actors=2, num_envs=16),
        learner=LearnerConfig(batch_size=batch_size),
        goal=Goal(mean_return=0.9),
    )


_LSTM = NetworkConfig(hidden_sizes=(32,), core="lstm", core_size=32)
_QUEUE = ReplayConfig(unroll_length=UNROLL, max_size=64)

impala = _experiment(IMPALAConfig(network=_LSTM), _QUEUE, 32)
feed_forward = _experiment(IMPALAConfig(), _QUEUE, 32)
r2d2 = _experiment(
    R2D2Config(
        network=_LSTM, burn_in=2, n_step=3, epsilon=EpsilonSchedule(1.0, 0.01, steps=64_000)
    ),
    ReplayConfig("prioritized", UNROLL, 2_000, 200, samples_per_insert=8, error_buffer=512),
    32,
)
