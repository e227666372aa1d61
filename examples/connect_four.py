"""Connect four: a policy that learns, moving second, against one that moves at random.

distrl train --experiment=examples/connect_four.py --topology=single_process
"""

from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo.classic import connect_four_v3
from pettingzoo.utils import BaseWrapper

from distrl.agents.ppo import PPOConfig
from distrl.config import ActorsConfig
from distrl.envs import MultiAgentEnvironment
from distrl.experiment import Experiment, LearnedPolicy
from distrl.goal import Goal
from distrl.rules import RandomPolicy


class FlatBoard(BaseWrapper):
    """Shows the board as a vector: 84 numbers, 1 where a piece of one's own or the other's is."""

    def observation_space(self, agent: str) -> spaces.Dict:
        board = spaces.Box(0, 1, (84,), np.float32)
        return spaces.Dict(observation=board, action_mask=spaces.Box(0, 1, (7,), np.int8))

    def observe(self, agent: str) -> dict[str, Any]:
        seen = super().observe(agent)
        return {**seen, "observation": seen["observation"].astype(np.float32).ravel()}


def connect_four() -> FlatBoard:
    return FlatBoard(connect_four_v3.raw_env())


experiment = Experiment(
    MultiAgentEnvironment(connect_four),
    policies={"learned": LearnedPolicy(PPOConfig()), "random": RandomPolicy()},
    policy_of={"player_0": "random", "player_1": "learned"},
    actors=ActorsConfig(num_actors=1, num_envs=16),
    goal=Goal(mean_return=0.72, window=500, max_env_steps=500_000),
)
