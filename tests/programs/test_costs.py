"""What parts cost is measured with the parts themselves."""

import time

import pytest

from distrl import presets
from distrl.config import ActorsConfig, LearnerConfig
from distrl.envs import PythonEnvironment
from distrl.experiment import Experiment
from distrl.programs import costs
from distrl.programs.topology_rates import CostLine
from distrl.replay.config import ReplayConfig
from distrl.testing import CheckingConfig, CountingEnvironment

SLEEP_S = 0.004


class Sleeping(CountingEnvironment):
    def step(self, action):
        time.sleep(SLEEP_S)
        return super().step(action)


@pytest.fixture(autouse=True)
def briefly(monkeypatch):
    for name in ("_STEPS_S", "_INFERENCES_S", "_UPDATES_S"):
        monkeypatch.setattr(costs, name, 0.01)


def measured(experiment, cores=2):
    found = costs.measure(experiment, cores)
    device = found.devices["cpu"]
    assert device.inference(4).wall > 0
    assert device.update.wall > 0 and device.update.cpu > 0
    return found


def test_sleep_takes_time_and_no_core():
    environment = PythonEnvironment(Sleeping, "sleeping")
    replay, learner = ReplayConfig(max_size=8), LearnerConfig(batch_size=4)
    parts = {"replay": replay, "actors": ActorsConfig(2, 2), "learner": learner}
    found = measured(Experiment(environment, CheckingConfig(), **parts))
    assert found.threaded is None
    assert found.step(4).wall >= 3 * SLEEP_S
    assert found.step(4).cpu < found.step(4).wall / 2
    assert isinstance(found.step, CostLine)


@pytest.mark.full
@pytest.mark.parametrize("env", ["Pendulum-v1", "LunarLanderContinuous-v2"])
def test_envpool_and_a_table_to_sample_from(env):
    found = measured(presets.experiment(env, "sac"))
    assert (found.threaded is None) == (env == "Pendulum-v1")
