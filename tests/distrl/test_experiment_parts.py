"""Parts of another kind are named when an experiment is made."""

import pytest

from distrl.agents.ppo import PPOConfig
from distrl.envs import NativeEnvironment, PythonEnvironment
from distrl.errors import ConfigError
from distrl.experiment import Experiment
from distrl.testing import CountingEnvironment

ENVIRONMENT = PythonEnvironment(CountingEnvironment)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"environment": "CartPole-v1"}, r"write distrl\.envs\.make\('CartPole-v1'\)"),
        ({"environment": CountingEnvironment(0)}, r"goes into PythonEnvironment\(builder\)"),
        ({"environment": NativeEnvironment}, "environment must be an environment of distrl.envs"),
        ({"agent": PPOConfig}, r"agent: PPOConfig is a class; write PPOConfig\(\)"),
        ({"agent": "ppo"}, r"agent must be an algorithm's settings, such as PPOConfig\(\)"),
        ({"replay": "uniform"}, "replay must be a ReplayConfig, got 'uniform'"),
        ({"goal": 475}, "goal must be a Goal, got 475"),
        ({"inference": None}, "inference must be a InferenceConfig, got None"),
        ({"transforms": PPOConfig()}, r"transforms must be a tuple, as in transforms=\(x,\)"),
        ({"callbacks": print}, r"callbacks must be a tuple, as in callbacks=\(x,\)"),
    ],
)
def test_a_part_of_another_kind_is_named(parts, message):
    with pytest.raises(ConfigError, match=message):
        Experiment(**{"environment": ENVIRONMENT, "agent": PPOConfig(), **parts})
