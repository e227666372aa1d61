"""Settings that are newer than a run: what they meant before is compared."""

import dataclasses
import json

import pytest

from distrl.agents.ddpg import DDPGConfig
from distrl.agents.dqn import DQNConfig
from distrl.agents.networks import NetworkConfig
from distrl.agents.sac import SACConfig
from distrl.agents.td3 import TD3Config
from distrl.envs import NativeEnvironment, PythonEnvironment
from distrl.experiment import Experiment
from distrl.launch.run_dir import config_diff
from distrl.replay.config import ReplayConfig
from distrl.testing import CheckingConfig, CountingEnvironment


def described(agent):
    made = Experiment(PythonEnvironment(CountingEnvironment), CheckingConfig(), ReplayConfig())
    object.__setattr__(made, "agent", agent)
    return json.loads(json.dumps(config_diff.describe(made)))


def test_a_dueling_run_of_before_goes_on_with_its_own_network_only():
    for dueling in (False, True):
        agent = DQNConfig(dueling=dueling)
        old, new = described(agent), described(agent)
        for name in DQNConfig.BEFORE:
            del old["experiment"]["agent"][name]
        changes = {change.field: change for change in config_diff.compare(old, new)}
        assert changes.keys() == {f"agent.{name}" for name in DQNConfig.BEFORE}
        change = changes["agent.dueling_streams"]
        assert (change.was, change.now, change.fixed) == (False, True, dueling)
        asked = described(dataclasses.replace(agent, **DQNConfig.BEFORE))
        assert config_diff.compare(old, asked) == []


@pytest.mark.parametrize("config", [SACConfig, TD3Config, DDPGConfig])
def test_a_run_without_pixels_and_memory_goes_on_as_it_was(config):
    old, new = described(config()), described(config())
    for name in ("network", "burn_in", "components"):
        del old["experiment"]["agent"][name]
    del old["classes"]["agent.network"]
    assert config_diff.compare(old, new) == []
    memory = described(config(network=NetworkConfig(core="lstm")))
    changes = {change.field: change for change in config_diff.compare(old, memory)}
    assert changes["agent.network.core"].fixed
    assert changes["agent.network.core"].was == "none"


def test_a_run_of_before_a_check_of_environments_goes_on():
    made = Experiment(NativeEnvironment("CartPole-v1"), CheckingConfig(), ReplayConfig())
    old, new = (json.loads(json.dumps(config_diff.describe(made))) for _ in range(2))
    for name in ("check_finite", "policies", "policy_of"):
        old["experiment"].pop(name, None)
        old["experiment"]["environment"].pop(name, None)
    assert not [change for change in config_diff.compare(old, new) if change.fixed]
