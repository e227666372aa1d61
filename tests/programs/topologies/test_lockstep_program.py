"""In lockstep two runs make the same parameters, however busy the machine is."""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.support.commands import EXPERIMENTS, finish

DAWDLING = EXPERIMENTS / "dawdling.py:experiment"


def train(run_dir: Path, updates: int, *flags: str) -> str:
    """Trains until so many updates; a hash of the parameters."""
    command = [
        sys.executable, "-m", "distrl", "train", f"--run_dir={run_dir}",
        "--config.goal.mean_return=None", f"--config.goal.max_learner_steps={updates}", *flags,
    ]  # fmt: skip
    done = finish(command, 280.0)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    with np.load(run_dir / "params.npz") as file:
        assert int(file["version"]) == updates
        found = hashlib.sha256()
        for name in sorted(file.files):
            found.update(name.encode() + file[name].tobytes())
    return found.hexdigest()


CARTPOLE = ("--env=CartPole-v1", "--config.lockstep=True", "--config.actors.num_actors=4")
IMPALA = (*CARTPOLE, "--topology=heavy_env", "--config.actors.num_envs=16")
DQN = (
    *CARTPOLE, "--topology=heavy_env", "--agent=dqn", "--config.actors.num_envs=8",
    "--config.replay.table=prioritized", "--config.replay.error_buffer=1024",
)  # fmt: skip


@pytest.mark.full
@pytest.mark.timeout(240)
def test_one_process_makes_the_same_twice(tmp_path):
    flags = (*CARTPOLE, "--topology=single_process", "--config.actors.num_envs=4")
    first, second = (train(tmp_path / name, 20, *flags) for name in ("one", "two"))
    assert first == second
    assert train(tmp_path / "other", 20, *flags, "--seed=1") != first


@pytest.mark.full
@pytest.mark.timeout(200)
def test_actors_that_dawdle_make_the_same_twice(tmp_path):
    flags = (f"--experiment={DAWDLING}", "--topology=heavy_env")
    first, second = (train(tmp_path / name, 60, *flags) for name in ("one", "two"))
    assert first == second


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("flags", [IMPALA, DQN], ids=["impala", "dqn"])
def test_four_actors_on_a_busy_machine(tmp_path, flags):
    busy = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
        for _ in range(len(os.sched_getaffinity(0)))
    ]
    try:
        first = train(tmp_path / "one", 500, *flags)
        train(tmp_path / "half", 250, *flags)
    finally:
        for process in busy:
            process.kill()
            process.wait(5)
    # Alone, on an idle machine, the same.
    assert train(tmp_path / "two", 500, *flags) == first
    # What goes on from one checkpoint goes on alike.
    shutil.copytree(tmp_path / "half", tmp_path / "copy")
    on = [train(tmp_path / name, 500, *flags) for name in ("half", "copy")]
    assert on[0] == on[1]
