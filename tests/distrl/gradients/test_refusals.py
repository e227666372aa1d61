"""Experiments that gradient workers cannot help are refused, with the reason."""

import dataclasses
import threading

import pytest

from distrl import presets
from distrl.agents.ppo import PPOConfig
from distrl.config import LearnerConfig
from distrl.errors import ConfigError
from distrl.programs.single_process import single_process


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"num_gradient_workers": -1},
            "num_gradient_workers must be a whole number, 0 or more; got -1",
        ),
        (
            {"num_gradient_workers": 9, "batch_size": 8},
            "learner.num_gradient_workers=9 is more than learner.batch_size=8 unrolls, of which "
            "each computes at least one; take at most 8",
        ),
        ({"num_gradient_workers": 2, "num_gpus": 1}, "with learner.num_gpus=1: workers compute"),
        ({"num_gradient_workers": 2, "num_devices": 2}, "with learner.num_devices=2: workers"),
        ({"gradient_timeout": 0.0}, "learner.gradient_timeout must be more than 0 s, got 0.0"),
    ],
)
def test_settings_that_cannot_be(settings, message):
    with pytest.raises(ConfigError) as error:
        LearnerConfig(**settings)
    assert message in str(error.value)


def test_agents_and_topologies_that_have_none():
    made = presets.experiment("CartPole-v1", "impala")
    learner = dataclasses.replace(made.learner, num_gradient_workers=2)
    with pytest.raises(ConfigError, match="PPO makes its updates itself"):
        dataclasses.replace(made, agent=PPOConfig(), learner=learner)
    with pytest.raises(ConfigError, match=r"lockstep: with learner\.num_gradient_workers"):
        dataclasses.replace(made, learner=learner, lockstep=True)
    workers = dataclasses.replace(made, learner=learner)
    with pytest.raises(ConfigError, match="they are nodes, and one process has none"):
        single_process(workers, stop=threading.Event())
