"""The settings of an experiment that a launch gets."""

import dataclasses
import math
import types
from pathlib import Path

import pytest

from distrl.config import SupervisionConfig
from distrl.envs import Copies, PoolConfig, PythonEnvironment
from distrl.experiment import Experiment
from distrl.launch.launcher import _hang_limits, _stop_grace, launch_options
from distrl.launch.supervision.restart_policy import HangLimits
from distrl.replay.config import ReplayConfig
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


def test_a_step_that_copies_or_the_evaluator_may_take_is_no_hang():
    slow = PythonEnvironment(CountingEnvironment, pool=PoolConfig(step_timeout=300.0))
    quick = PythonEnvironment(CountingEnvironment)
    policies, policy_of = {"x": CheckingConfig(), "y": CheckingConfig()}, {"0": "x", "1": "y"}
    experiments = [
        Experiment(Copies(slow, 2), policies=policies, policy_of=policy_of),
        Experiment(quick, CheckingConfig(), evaluation_environment=slow),
    ]
    for experiment in experiments:
        assert _hang_limits(experiment) == HangLimits(330.0, 600.0, 10.0)


def test_the_kernel_has_time_to_free_a_large_table():
    environment = PythonEnvironment(CountingEnvironment, "counting")
    small = Experiment(environment, CheckingConfig(), replay=ReplayConfig(max_size=1000))
    program = types.SimpleNamespace(groups={"actor": [], "learner": [], "replay": []})
    table = small.only_task.table_bytes
    grace = _stop_grace(program, small)
    assert grace == {"learner": 30.0, "replay": pytest.approx(3.0 + 2.0 * table / 1e9)}
    large = dataclasses.replace(small, replay=ReplayConfig(max_size=1_000_000))
    assert _stop_grace(program, large)["replay"] == pytest.approx(3.0 + 2000 * table / 1e9)
    del program.groups["replay"]
    assert _stop_grace(program, small) == {"learner": 30.0}


@pytest.mark.parametrize(
    ("setting", "limit"),
    [(0.5, 500_000), (50, 50_000_000), (None, None), (math.inf, None), (1e305, None)],
)
def test_an_infinite_size_of_logs_is_no_limit(setting, limit):
    supervision = SupervisionConfig(log_limit_mb=setting)
    environment = PythonEnvironment(CountingEnvironment, "counting")
    experiment = Experiment(environment, CheckingConfig(), supervision=supervision)
    program = types.SimpleNamespace(groups={"actor": []})
    options = launch_options(program, experiment, Path("run"), "output_to_files", saves=False)
    assert options.log_limit == limit


@pytest.mark.parametrize(("label", "scaled"), [("actor", ["actor"]), ("player", [])])
def test_only_groups_of_the_program_are_scaled(label, scaled):
    """`launch` refuses others; a program of one's own may name its actors as it likes."""
    experiment = Experiment(PythonEnvironment(CountingEnvironment, "counting"), CheckingConfig())
    program = types.SimpleNamespace(groups={label: [], "learner": []})
    options = launch_options(program, experiment, Path("run"), "output_to_files", saves=False)
    assert list(options.active) == scaled
