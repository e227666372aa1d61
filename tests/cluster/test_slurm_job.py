"""The batch script of the examples, on a real Slurm, with a `distrl` that only tells signals."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from virtual_slurm import Slurm

SCRIPT = Path(__file__).parents[2] / "examples" / "slurm_job.sh"
FAKE = """#!/bin/bash
[ -n "$SLURM_RESTART_COUNT" ] && echo resumed && exit 0
trap 'echo told; exit 143' TERM
echo "$@"
srun -N1 -n1 -w h3 --overlap --quiet sleep 100 &
wait
"""

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def submit(slurm: Slurm, tmp_path: Path) -> Callable[[], tuple[int, Path]]:
    """Submits the script and waits until its `distrl` runs; returns the job and its output."""

    def run() -> tuple[int, Path]:
        (tmp_path / "distrl").write_text(FAKE)
        (tmp_path / "distrl").chmod(0o755)
        out = tmp_path / "out"
        sbatch = ["sbatch", "--parsable", f"--output={out}", SCRIPT, "--env=CartPole-v1"]
        environ = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "RUN_DIR": str(tmp_path)}
        job = int(slurm.exec("h1", ["env", *map("=".join, environ.items()), *sbatch]).stdout)
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
    assert {"train", "--hosts=h1,h2,h3", "--env=CartPole-v1"} <= set(first)
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
