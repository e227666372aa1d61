"""Two policies, one of which has work: "early"; once the file $DISTRL_SHIFT exists, "late"."""

import os
from typing import Any

import numpy as np
from gymnasium import spaces

from distrl.agents.dqn import DQNConfig
from distrl.agents.networks import NetworkConfig
from distrl.config import ActorsConfig, LearnerConfig
from distrl.envs.multi_agent.environment import MultiAgentEnvironment
from distrl.experiment import Experiment, LearnedPolicy
from distrl.goal import Goal
from distrl.replay.config import ReplayConfig

_LENGTH = 8  # steps of an episode


class Shifting:
    """An environment of PettingZoo's form, with one agent in each episode."""

    possible_agents = ("early", "late")

    def __init__(self, seed: int):
        self._random = np.random.default_rng(seed)
        self.agents: list[str] = []
        self._step = 0

    def observation_space(self, agent: str) -> spaces.Box:
        return spaces.Box(-1.0, 1.0, (8,), np.float32)

    def action_space(self, agent: str) -> spaces.Discrete:
        return spaces.Discrete(4)

    def _observe(self) -> Any:
        return {agent: self._random.uniform(-1, 1, 8).astype(np.float32) for agent in self.agents}

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        self.agents = ["late" if os.path.exists(os.environ["DISTRL_SHIFT"]) else "early"]
        self._step = 0
        return self._observe(), {}

    def step(self, actions: dict[str, Any]) -> tuple[Any, Any, Any, Any, Any]:
        self._step += 1
        over = self._step == _LENGTH
        present, observations = list(self.agents), self._observe()
        if over:
            self.agents = []
        rewards = dict.fromkeys(present, 1.0)
        return (
            observations,
            rewards,
            dict.fromkeys(present, over),
            dict.fromkeys(present, False),
            {},
        )

    def close(self) -> None:
        pass


def experiment() -> Experiment:
    """Each policy learns from what it has as fast as it can; "late" begins with more workers."""
    policies = {name: _policy(count) for name, count in (("early", 1), ("late", 2))}
    return Experiment(
        MultiAgentEnvironment(Shifting, "shifting"),
        policies=policies,
        policy_of={name: name for name in policies},
        actors=ActorsConfig(num_actors=1, num_envs=4),
        goal=Goal(mean_return=None, max_env_steps=10**9),
    )


def _policy(num_workers: int) -> LearnedPolicy:
    return LearnedPolicy(
        DQNConfig(NetworkConfig(hidden_sizes=(256, 256))),
        ReplayConfig(
            "uniform",
            unroll_length=4,
            max_size=2_000,
            min_size_to_sample=32,
            samples_per_insert=512,
            error_buffer=5_000,
        ),
        LearnerConfig(batch_size=64, num_gradient_workers=num_workers),
    )
