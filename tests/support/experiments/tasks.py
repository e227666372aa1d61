"""Experiments with several tasks on the steps of one agent."""

import dataclasses

from distrl import envs
from distrl.agents.dqn import DQNConfig
from distrl.agents.impala import IMPALAConfig
from distrl.agents.networks import NetworkConfig
from distrl.config import ActorsConfig, LearnerConfig
from distrl.envs import PythonEnvironment
from distrl.experiment import Experiment, LearnedPolicy
from distrl.goal import Goal
from distrl.replay.config import ReplayConfig
from distrl.testing import STEP, CheckingConfig, CountingEnvironment
from tests.support.product_agent import ProductConfig

ENVIRONMENT = PythonEnvironment(CountingEnvironment, "counting")
ACTORS = ActorsConfig(num_actors=2, num_envs=4)
REPLAY = ReplayConfig(unroll_length=5, max_size=100)


def checking() -> Experiment:
    """A task that acts, and one that checks the same steps, in unrolls of another length."""
    return Experiment(
        ENVIRONMENT,
        policies={
            "aux": LearnedPolicy(
                CheckingConfig(False),
                dataclasses.replace(REPLAY, unroll_length=3),
                LearnerConfig(batch_size=4),
                learns_from="main",
            ),
            "main": LearnedPolicy(CheckingConfig(), REPLAY, LearnerConfig(batch_size=8)),
        },
        actors=ACTORS,
    )


def sharing() -> Experiment:
    """Two tasks with a torso in common."""
    policies = {
        "main": LearnedPolicy(
            ProductConfig(1e-2, target=STEP), REPLAY, LearnerConfig(batch_size=8)
        ),
        "aux": LearnedPolicy(
            ProductConfig(1e-2, target=STEP),
            REPLAY,
            LearnerConfig(batch_size=4),
            learns_from="main",
        ),
    }
    return Experiment(
        ENVIRONMENT, policies=policies, actors=ACTORS, shared={"torso": ("main", "aux")}
    )


def lockstep_limited() -> Experiment:
    """As `lockstep`, with a limit of updates for each: the one that acts reaches its first."""
    made = lockstep()
    policies = {
        name: dataclasses.replace(made.policies[name], goal=Goal(max_learner_steps=updates))
        for name, updates in (("main", 3), ("aux", 60))
    }
    return dataclasses.replace(made, policies=policies)


def lockstep() -> Experiment:
    """IMPALA acts, and DQN learns from the same steps, in lockstep."""
    network = NetworkConfig(hidden_sizes=(8,))
    return Experiment(
        envs.make("CartPole-v1"),
        policies={
            "main": LearnedPolicy(IMPALAConfig(network), REPLAY, LearnerConfig(batch_size=8)),
            "aux": LearnedPolicy(
                DQNConfig(network), REPLAY, LearnerConfig(batch_size=4), learns_from="main"
            ),
        },
        actors=ACTORS,
        lockstep=True,
    )
