"""A real Slurm's jobs with GPUs: each host's step has the GPUs that the launcher counts on."""

import sys
from pathlib import Path

import pytest

from tests.support.cluster.slurm import Slurm

ROOT = Path(__file__).parents[2]
SHOW = """#!{python}
import subprocess, sys

sys.path.insert(0, {root!r})
from distrl.launch.hosts import slurm

for host in slurm.hosts():
    show = ["sh", "-c", "echo $(hostname) $CUDA_VISIBLE_DEVICES"]
    shown = subprocess.run(slurm.step(host, (), show), capture_output=True, text=True, check=False)
    said = [each for each in shown.stderr.splitlines() if "support for cpu binding" not in each]
    print(host.gpus, shown.stdout.strip(), *said)  # TaskPlugin=task/none binds nothing, and says so
"""

pytestmark = pytest.mark.timeout(120)


def test_a_step_has_its_hosts_gpus(slurm: Slurm, tmp_path: Path):
    script = tmp_path / "job.py"
    script.write_text(SHOW.format(python=sys.executable, root=str(ROOT)))
    jobs = {
        "--nodes=2 --gpus=3": ["2 h1 0,1", "1 h2 0"],
        "--nodes=2 --ntasks-per-node=2 --gpus-per-task=1": ["2 h1 0,1", "2 h2 0,1"],
        "--nodes=2 --exclusive": ["2 h1 0,1", "2 h2 0,1"],
        "--nodes=2 --gpus-per-node=1": ["1 h1 0", "1 h2 0"],
        "--nodes=1 --gpus=1 : --nodes=2": ["1 h1 0", "0 h2", "0 h3"],
    }
    for number, options in enumerate(jobs):
        out = tmp_path / f"out{number}"
        sbatch = ["sbatch", "--parsable", f"--output={out}", *options.split(), script]
        slurm.await_state(int(slurm.exec("h1", sbatch).stdout), "COMPLETED")
        lines = [line.strip() for line in out.read_text().splitlines()]
        assert lines == jobs[options], options
        slurm.await_idle()
