"""What a run loses with a host, and gets back with it."""

import csv
import signal
from pathlib import Path

import pytest

from tests.support.cluster.hosts import Hosts
from tests.support.cluster.program import CARTPOLE, FOR_EVER, Program, nothing_is_left
from tests.support.commands import SUBSTRATES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

BUDGET = 40_000
EXPERIMENT = """
import os, socket, time, uuid
import gymnasium
import numpy as np
from distrl.agents.impala import IMPALAConfig
from distrl.envs import PythonEnvironment
from distrl.experiment import ActorsConfig, Experiment, LearnerConfig

class Counted(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1e6, 1e6, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self):
        self.file = open(FOLDER + "/" + uuid.uuid4().hex, "wb", buffering=0)

    def reset(self, *, seed=None, options=None):
        self.time = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        time.sleep(0.001)
        self.file.write(b".")
        self.time += 1
        return np.zeros(2, np.float32), 1.0, False, self.time >= 10, {}

experiment = Experiment(
    PythonEnvironment(Counted),
    IMPALAConfig(),
    actors=ActorsConfig(num_actors=2, num_envs=4),
    learner=LearnerConfig(batch_size=4),
)
"""


def column(program: Program, name: str) -> list[int]:
    """Of `metrics.csv`, which may be written just now."""
    path = program.run_dir / "metrics.csv"
    if not path.exists():
        return []
    with path.open() as file:
        return [int(row[name]) for row in csv.DictReader(file) if row.get(name)]


def lose(program: Program, host: str) -> None:
    program.hosts.poweroff(host)
    program.wait_for(lambda: f"host {host} is lost" in program.output, f"{host} named", 20.0)


@pytest.mark.parametrize("substrate", SUBSTRATES)
def test_a_budget_is_kept_by_a_host_that_is_back_and_without_one_that_is_not(
    hosts: Hosts, tmp_path: Path, substrate: str
):
    counts = tmp_path / "counts"
    counts.mkdir()
    experiment = tmp_path / "experiment.py"
    experiment.write_text(f"FOLDER = {str(counts)!r}\n{EXPERIMENT}")
    program = Program(
        hosts, tmp_path, f"--experiment={experiment}", f"--substrate={substrate}",
        f"--max_env_steps={BUDGET}", "--config.goal.mean_return=None",
    )  # fmt: skip
    program.wait_for_training()
    program.gets_on()
    lose(program, "h2")
    hosts.boot("h2")
    log = program.run_dir / "logs" / "supervisor.log"
    program.wait_for(lambda: log.read_text().count("actor/0 is running") == 2, "h2 back", 90.0)
    lose(program, "h3")
    assert program.process.wait(240.0) == 0, program.output
    assert "distrl: ended without host h3, which is lost: relay/1, actor/1\n" in program.output
    assert "failed while stopping" not in program.output
    steps = column(program, "env_steps")
    assert steps == sorted(steps) and BUDGET <= steps[-1] < BUDGET + 4
    assert min(column(program, "env_steps_unreported")) >= 0
    taken = sum(path.stat().st_size for path in counts.iterdir())
    assert steps[-1] <= taken < 1.05 * BUDGET  # all but the last ones on the two hosts are counted
    nothing_is_left(hosts)


@pytest.mark.parametrize("substrate", SUBSTRATES)
def test_gradient_workers_are_used_again_when_their_host_is_back(
    hosts: Hosts, tmp_path: Path, substrate: str
):
    program = Program(
        hosts, tmp_path, *CARTPOLE, *FOR_EVER, f"--substrate={substrate}",
        "--config.learner.num_gradient_workers=2", "--config.learner.batch_size=8",
        hosts_flag="h1,h2:cores=1,h3:gradient_workers=2",
    )  # fmt: skip

    def wait_for_ready(count: int) -> None:
        ready = lambda: column(program, "gradient_workers_ready")[-1:] == [count]  # noqa: E731
        program.wait_for(ready, f"{count} workers ready")

    program.wait_for_training()
    wait_for_ready(2)
    lose(program, "h3")
    wait_for_ready(0)
    hosts.boot("h3")
    wait_for_ready(2)
    program.signal(signal.SIGINT)
    assert program.process.wait(60.0) == 128 + signal.SIGINT
    nothing_is_left(hosts)
