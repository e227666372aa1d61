"""The settings of an experiment that a launch gets."""

import math

import pytest

from distrl.config import SupervisionConfig
from distrl.envs import PoolConfig, PythonEnvironment
from distrl.experiment import Experiment
from distrl.launch.launcher import _hang_limits
from distrl.launch.supervision.restart_policy import HangLimits
from distrl.testing import CheckingConfig, CountingEnvironment


@pytest.mark.parametrize(
    ("step_timeout", "settings", "limits"),
    [
        (60.0, {}, HangLimits(60.0, 600.0, 10.0)),
        (300.0, {}, HangLimits(330.0, 600.0, 10.0)),
        (1000.0, {}, HangLimits(1030.0, 1030.0, 10.0)),
        (math.inf, {}, HangLimits(None, None, 10.0)),
        (300.0, {"idle_limit": 5.0}, HangLimits(5.0, 600.0, 10.0)),  # by the user's choice
        (300.0, {"idle_limit": None}, HangLimits(None, 600.0, 10.0)),
    ],
)
def test_a_step_that_its_pool_allows_is_no_hang(step_timeout, settings, limits):
    pool = PoolConfig(step_timeout=step_timeout)
    environment = PythonEnvironment(CountingEnvironment, "counting", pool=pool)
    supervision = SupervisionConfig(**settings)
    experiment = Experiment(environment, CheckingConfig(), supervision=supervision)
    assert _hang_limits(experiment) == limits
