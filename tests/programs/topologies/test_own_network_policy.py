"""A network of the user's own trains in one process, and its policy loads without its file."""

import dataclasses
import importlib.util
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import distrl
from distrl.errors import ConfigError
from distrl.goal import Goal
from distrl.programs.single_process import single_process

EXAMPLE = Path(__file__).parents[3] / "examples/own_network.py"


def test_it_trains_and_is_loaded_without_its_file(tmp_path, monkeypatch):
    copy = tmp_path / "own_network_copy.py"
    copy.write_text(EXAMPLE.read_text())
    spec = importlib.util.spec_from_file_location("own_network_copy", copy)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "own_network_copy", module)
    spec.loader.exec_module(module)
    experiment = dataclasses.replace(module.experiment, goal=Goal(max_learner_steps=1))
    run = tmp_path / "run"
    run.mkdir()
    single_process(experiment, stop=threading.Event(), run_dir=run, printer=lambda line: None)
    copy.unlink()
    monkeypatch.delitem(sys.modules, "own_network_copy")
    with pytest.raises(
        ConfigError, match=r"has code of its own \(own_network_copy.torso\)|agent.pkl"
    ):
        distrl.load_policy(run)
    policy = distrl.load_policy(run, trust=True)
    env = module.Lookout()
    observation, _ = env.reset(seed=1)
    for _ in range(5):
        action = policy(observation)
        assert observation["action_mask"][action] == 1
        observation, *_ = env.step(int(action))
        if (np.asarray(env._ship) == env._buoy).all():
            observation, _ = env.reset()
            policy.reset()
