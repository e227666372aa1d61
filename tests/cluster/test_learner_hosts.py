"""Two hosts are one learner, by jax.distributed."""

import sys
from pathlib import Path

import pytest

from tests.support.cluster.hosts import Hosts
from tests.support.cluster.program import ROOT, SOLVE_S, nothing_is_left


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("hosts", [2], indirect=True)
def test_two_hosts_solve_cartpole_together(hosts: Hosts, tmp_path: Path):
    processes, logs = [], [tmp_path / name for name in hosts.names]
    for index, name in enumerate(hosts.names):
        command = [
            sys.executable, "-m", "distrl", "train", "--topology=single_process",
            "--env=CartPole-v1", f"--coordinator_address={hosts.address('h1')}:4000",
            "--num_processes=2", "--open_learner_ports",
            f"--process_id={index}", f"--run_dir={tmp_path / 'run'}-{index}",
        ]  # fmt: skip
        with logs[index].open("wb") as log:
            processes.append(hosts.popen(name, command, cwd=ROOT, stdout=log, stderr=log))
    ends = [process.wait(SOLVE_S) for process in processes]
    said = [log.read_text(errors="replace") for log in logs]
    assert ends == [0, 0], said
    assert "the mean return of the last 100 episodes is" in said[0]
    nothing_is_left(hosts)
