"""Experiments with several agents and policies that check the data path by exact arithmetic."""

import dataclasses

from distrl.config import ActorsConfig, LearnerConfig
from distrl.envs.multi_agent.environment import MultiAgentEnvironment
from distrl.experiment import Experiment, LearnedPolicy
from distrl.replay.config import ReplayConfig
from distrl.rules import Rule
from distrl.testing import CheckingConfig, CountingAgents

REPLAY = ReplayConfig(unroll_length=5, max_size=100)


def experiment(backend: str = "shared_memory") -> Experiment:
    """Two learned policies, one of them for two of the three agents."""
    replay = dataclasses.replace(REPLAY, backend=backend)
    return Experiment(
        MultiAgentEnvironment(CountingAgents, "counting"),
        policies={
            "outer": LearnedPolicy(CheckingConfig(), replay, LearnerConfig(batch_size=6)),
            "inner": LearnedPolicy(CheckingConfig(False), replay, LearnerConfig(batch_size=4)),
        },
        policy_of={"a": "outer", "b": "inner", "c": "outer"},
        actors=ActorsConfig(num_actors=2, num_envs=4),
    )


def reverb() -> Experiment:
    """As `experiment`, with tables on Reverb servers."""
    return experiment("reverb")


def asynchronous() -> Experiment:
    """As `experiment`, with actors that wait for three of their four environments."""
    made = experiment()
    return dataclasses.replace(made, actors=dataclasses.replace(made.actors, wait_num=3))


def _three(observation: object) -> int:
    return 3


def with_rule() -> Experiment:
    """One learned policy beside a rule."""
    made = experiment()
    policies = {"outer": made.policies["outer"], "inner": Rule(_three)}
    return dataclasses.replace(made, policies=policies)
