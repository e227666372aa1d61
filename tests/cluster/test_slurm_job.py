"""Jobs on a real Slurm: the batch script with a `distrl` that only tells signals, and real runs."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from distrl.launch.hosts.slurm import SBATCH, script
from tests.support.cluster.hosts import Hosts
from tests.support.cluster.program import CARTPOLE, FOR_EVER, SOLVE_S, Program, nothing_is_left
from tests.support.cluster.slurm import Slurm

FAKE = """#!/bin/bash
[ -n "$SLURM_RESTART_COUNT" ] && echo resumed && exit 0
trap 'echo told; exit 143' TERM
echo "$@"
srun -N1 -n1 -w h3 --overlap --quiet sleep 100 &
wait
"""

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def submit(slurm: Slurm, tmp_path: Path) -> Callable[[], tuple[int, Path]]:
    """Submits the script and waits until its `distrl` runs; returns the job and its output."""

    def run() -> tuple[int, Path]:
        (tmp_path / "distrl").write_text(FAKE)
        (tmp_path / "distrl").chmod(0o755)
        out, path = tmp_path / "out", tmp_path / "slurm.sh"
        path.write_text(script([f"{tmp_path}/distrl", "train", "--env=CartPole-v1"], tmp_path))
        sbatch = [*SBATCH, "--nodes=3", f"--output={out}", path]
        job = int(slurm.exec("h1", sbatch).stdout)
        deadline = time.monotonic() + 30.0
        while "CartPole" not in (out.read_text() if out.exists() else ""):
            assert time.monotonic() < deadline, slurm.log()
            time.sleep(0.05)
        return job, out

    return run


@pytest.mark.parametrize("notice", ["its time is over", "requeue"])
def test_a_job_saves_and_goes_on_in_its_next_life(slurm: Slurm, submit, notice: str):
    job, out = submit()
    first = out.read_text().splitlines()[0].split()
    assert first == ["train", "--env=CartPole-v1"]
    if notice == "requeue":
        slurm.exec("h1", ["scontrol", "requeue", str(job)])
    else:
        slurm.exec("h1", ["scancel", "--batch", "--signal=USR1", str(job)])
    slurm.await_state(job, "COMPLETED", now=True)
    lines = [line for line in out.read_text().splitlines() if line in ("told", "resumed")]
    assert lines == ["told", "resumed"]


def test_a_job_that_is_cancelled_is_not_run_again(slurm: Slurm, submit):
    job, out = submit()
    slurm.exec("h1", ["scancel", str(job)])
    slurm.await_idle()
    assert slurm.state(job) == "CANCELLED"
    assert "told" in out.read_text() and "resumed" not in out.read_text()


def train(hosts: Hosts, slurm: Slurm, tmp_path: Path, *flags: str) -> tuple[Program, int]:
    """Submits a real run over three nodes."""
    program = Program(
        hosts,
        tmp_path,
        *CARTPOLE,
        *flags,
        "--launcher=slurm",
        "--slurm=--nodes=3",
        hosts_flag=None,
        environ=slurm.environ,
    )
    assert program.process.wait(60.0) == 0, program.output
    job = int(program.output.split("distrl: submitted job ")[1].split(";")[0])
    program.read(program.run_dir / "slurm.log")
    return program, job


@pytest.mark.slow
@pytest.mark.parametrize("light", [False, True])
def test_cartpole_is_solved_in_a_job(hosts: Hosts, slurm: Slurm, tmp_path: Path, light: bool):
    program, job = train(hosts, slurm, tmp_path, f"--light={light}")
    slurm.await_state(job, "COMPLETED", limit=SOLVE_S)
    assert program.result()["status"] == "finished", program.output
    nothing_is_left(hosts)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["requeued", "the learner's node loses its power"])
def test_a_job_resumes_from_its_checkpoint(hosts: Hosts, slurm: Slurm, tmp_path: Path, how: str):
    program, job = train(hosts, slurm, tmp_path, *FOR_EVER, "--config.checkpoint.period=2")
    deadline = time.monotonic() + SOLVE_S
    while program.output.count("[learner/0] checkpoint") < 3:
        assert time.monotonic() < deadline, program.output
        time.sleep(0.1)
    if how == "requeued":
        slurm.exec("h1", ["scontrol", "requeue", str(job)])
    else:  # the controller's host is the first one: another must hold the learner
        hosts.poweroff("h1")
        slurm.boot("h1")
    deadline = time.monotonic() + SOLVE_S
    while "resuming from" not in program.output:
        if slurm.state(job) == "PENDING":
            slurm.start_now(job)
        assert time.monotonic() < deadline, program.output
        time.sleep(0.5)
    program.await_training(after=program.output.rindex("resuming from"))
    slurm.exec("h1", ["scancel", str(job)])
    nothing_is_left(hosts)
