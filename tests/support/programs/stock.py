"""One of our programs under Launchpad's own launcher: python stock.py TOPOLOGY BACKEND RUN_DIR."""

import importlib
from pathlib import Path

import launchpad as lp
from absl import app

from distrl.envs import PythonEnvironment
from distrl.experiment import ActorsConfig, Experiment, LearnerConfig
from distrl.goal import Goal
from distrl.replay.config import ReplayConfig
from distrl.testing import CheckingConfig, CountingEnvironment


def main(arguments: list[str]) -> None:
    _, topology, backend, run_dir = arguments
    Path(run_dir).mkdir(parents=True)
    experiment = Experiment(
        PythonEnvironment(CountingEnvironment, "counting"),
        CheckingConfig(),
        replay=ReplayConfig(unroll_length=5, backend=backend),
        actors=ActorsConfig(num_actors=1, num_envs=4),
        learner=LearnerConfig(batch_size=4),
        goal=Goal(max_env_steps=400),
    )
    make_program = getattr(importlib.import_module(f"distrl.programs.{topology}"), topology)
    controller = lp.launch(
        make_program(experiment, run_dir), launch_type="local_mp", terminal="current_terminal"
    )
    controller.wait()


if __name__ == "__main__":
    app.run(main)
