"""Learning, end to end: the exact tests come first, these come on top."""

import dataclasses
import sys
import threading

import pytest

from distrl import presets
from distrl.experiment import EvaluatorConfig
from distrl.goal import Goal
from distrl.launch.run_dir.config_dict import as_dict
from distrl.programs.single_process import single_process
from tests.support.commands import finish, skip_without_reverb
from tests.support.selection import full


@pytest.mark.parametrize("core", ["none", full("lstm")])
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


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["shared_memory", "reverb"])
@pytest.mark.parametrize(
    ("agent", "env", "flags"),
    [
        ("ppo", "CartPole-v1", ()),
        ("a2c", "CartPole-v1", ("--config.agent.network.core=lstm",)),
        ("dqn", "CartPole-v1", ("--config.replay.table=prioritized",)),
        ("r2d2", "CartPole-v1", ("--topology=light_env",)),
        ("sac", "Pendulum-v1", ("--max_env_steps=4000",)),  # an update for each step
        (
            "td3",
            "Pendulum-v1",
            (
                "--topology=light_env",
                "--max_env_steps=4000",
                "--config.replay.min_size_to_sample=1000",
            ),
        ),
    ],
)
def test_every_kind_of_agent_runs_in_programs(tmp_path, agent, env, flags, backend):
    skip_without_reverb(backend)
    command = [
        sys.executable, "-m", "distrl", "train", f"--env={env}", f"--agent={agent}",
        "--topology=heavy_env", f"--config.replay.backend={backend}",
        f"--run_dir={tmp_path / 'run'}", "--max_env_steps=20000", *flags,
    ]  # fmt: skip
    done = finish(command)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
