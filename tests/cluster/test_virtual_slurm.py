"""The virtual Slurm that other tests run on."""

from pathlib import Path

import pytest

from tests.support.cluster.hosts import Hosts
from tests.support.cluster.slurm import Slurm

pytestmark = pytest.mark.timeout(120)


def test_steps_run_on_every_node(slurm: Slurm):
    done = slurm.exec("h1", ["srun", "-N3", "sh", "-c", "echo $SLURM_PROCID $(hostname)"])
    assert sorted(done.stdout.split("\n")) == ["", "0 h1", "1 h2", "2 h3"]
    shown = slurm.exec("h2", ["scontrol", "show", "hostnames", "h[1-3]"])
    assert shown.stdout.split() == ["h1", "h2", "h3"]
    assert slurm.exec("h1", ["srun", "-N1", "sh", "-c", "exit 3"], check=False).returncode == 3
    het = ["srun", "-N1", "hostname", ":", "-N2", "hostname"]
    assert sorted(slurm.exec("h1", het).stdout.split()) == ["h1", "h2", "h3"]


def test_a_job_is_told_to_end_and_runs_again(hosts: Hosts, slurm: Slurm, tmp_path: Path):
    script = tmp_path / "job.sh"
    script.write_text(
        "#!/bin/bash\ntrap 'echo told; exit 1' TERM\n"
        "echo life $SLURM_RESTART_COUNT on $(hostname)\n"
        '[ -n "$SLURM_RESTART_COUNT" ] && exit 0\nsleep 100 & wait\n'
    )
    out = tmp_path / "out"
    sbatch = ["sbatch", "--parsable", "--requeue", "--open-mode=append", f"--output={out}", script]
    job = int(slurm.exec("h1", sbatch).stdout)
    slurm.await_state(job, "RUNNING")
    while "life" not in (out.read_text() if out.exists() else ""):
        slurm.await_state(job, "RUNNING")
    slurm.exec("h1", ["scontrol", "requeue", str(job)])
    slurm.await_state(job, "COMPLETED", now=True)
    lines = out.read_text().splitlines()
    assert lines[0] == "life on h1" and lines[-1] == "life 1 on h1"
    slurm.await_idle()
    assert [hosts.processes(name) for name in hosts.names] == [[], [], []]


@pytest.mark.slow
def test_a_job_whose_node_loses_its_power_is_requeued(hosts: Hosts, slurm: Slurm, tmp_path: Path):
    script = tmp_path / "job.sh"
    script.write_text('#!/bin/bash\n[ -n "$SLURM_RESTART_COUNT" ] && exit 0\nsleep 100\n')
    sbatch = ["sbatch", "--parsable", "--requeue", "--nodelist=h2", f"--output={tmp_path}/out"]
    job = int(slurm.exec("h1", [*sbatch, script]).stdout)
    slurm.await_state(job, "RUNNING")
    hosts.poweroff("h2")
    slurm.await_state(job, "PENDING", limit=60.0)
    slurm.boot("h2")
    slurm.await_state(job, "COMPLETED", limit=30.0, now=True)
