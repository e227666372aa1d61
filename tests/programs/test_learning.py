"""Learning, end to end: the exact tests come first, these come on top."""

import dataclasses
import threading

import pytest

from distrl import presets
from distrl.experiment import EvaluatorConfig
from distrl.metrics import Goal
from launch.overrides import as_dict
from programs.single_process import single_process


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_cartpole_is_learned_in_one_process(tmp_path, core):

    experiment = presets.experiment("CartPole-v1", seed=3)
    network = dataclasses.replace(experiment.agent.network, core=core)
    experiment = dataclasses.replace(
        experiment,
        agent=dataclasses.replace(experiment.agent, network=network),
        goal=Goal(mean_return=150.0, max_env_steps=600_000),
        evaluator=EvaluatorConfig(num_evaluators=1, num_envs=4, episodes=4, interval=0.5),
    )
    lines = []
    ending = single_process(
        experiment, stop=threading.Event(), run_dir=tmp_path, printer=lines.append
    )
    assert ending is not None and ending[1], ending
    assert (tmp_path / "params.npz").exists()
    assert (tmp_path / "metrics.csv").read_text().count("\n") >= 2
    assert as_dict(experiment)["agent"]["network"]["core"] == core
