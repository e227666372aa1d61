"""Several hosts, all of them this one: what needs no root. The rest is in tests/cluster."""

import contextlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from distrl.launch.network.ports import Ports

ROOT = Path(__file__).parents[3]
HOSTS = "--hosts=a:address=localhost,b:address=localhost"
OWN = """
import dataclasses
from distrl import presets
from distrl.agents.impala import IMPALAConfig


@dataclasses.dataclass(frozen=True)
class Mine(IMPALAConfig):
    def make(self, env_spec):
        print("made by a file that the hosts do not have")
        return super().make(env_spec)


def experiment():
    made = presets.experiment("CartPole-v1", "impala")
    mine = {field.name: getattr(made.agent, field.name) for field in dataclasses.fields(made.agent)}
    return dataclasses.replace(made, agent=Mine(**mine))
"""

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("launchpad") is None, reason="Launchpad is not installed"
    ),
    pytest.mark.timeout(240),
]


def train(folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable, "-m", "distrl", "train", "--topology=multi_machine", *flags,
        f"--run_dir={folder / 'run'}",
    ]  # fmt: skip
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=200, check=False
    )


@pytest.mark.full
def test_a_users_own_file_runs_on_two_hosts(tmp_path):
    (tmp_path / "mine.py").write_text(OWN)
    done = train(tmp_path, "--experiment=mine.py", HOSTS, "--max_env_steps=20000")
    assert done.returncode == 0, done.stdout + done.stderr
    actor = (tmp_path / "run" / "logs" / "actor-0.log").read_text()
    assert "made by a file that the hosts do not have" in actor
    relay = (tmp_path / "run" / "logs" / "relay-0.log").read_text()
    assert "fetched " in relay
    rows = (tmp_path / "run" / "metrics.csv").read_text().splitlines()
    assert int(rows[-1].split(",")[1]) >= 20000


def test_the_wait_for_the_hosts_is_a_flag(tmp_path):
    pytest.importorskip("cryptography")
    from distrl.launch.network.credentials import make_credentials, write_credentials

    credentials = tmp_path / "credentials.pem"
    write_credentials(credentials, make_credentials())
    with contextlib.closing(Ports()) as ports:
        join = (f"--join_port={ports.take()}", f"--credentials={credentials}", "--join_wait=0")
        done = train(tmp_path, HOSTS, "--launcher=join", *join)
    assert done.returncode == 2
    reasons = "a: it has not been reached yet; b: it has not been reached yet"
    assert f"not all hosts joined in time: {reasons}; --join_wait" in done.stderr


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "name the machines, the learner's first: --hosts=h1,h2,h3"),
        (["--hosts=h1,h1"], "h1 is named twice"),
        (
            ["--hosts=localhost,h2"],
            "h2 would look for localhost at localhost, which is h2 itself; give an address that "
            "the other hosts reach: localhost:address=10.0.0.4",
        ),
        (
            ["--hosts=h1:address=127.0.0.1,h2", "--launcher=slurm", "--slurm=--nodes=2"],
            "h2 would look for h1 at 127.0.0.1",
        ),
        ([HOSTS, "--config.replay.backend=shared_memory"], "other machines do not reach it"),
        ([HOSTS, "--debug=actor/0"], "debug on one machine"),
        ([HOSTS, "--lp_launch_type=local_mt"], "debug on one machine"),
        ([HOSTS, "--launcher=join"], "give --credentials=FILE"),
        ([HOSTS, "--launcher=join", "--credentials=no.pem"], "--credentials=no.pem: No such file"),
        (
            ["--launcher=slurm"],
            "not in a Slurm job; submit one with --slurm='--nodes=3 --exclusive'",
        ),
        ([HOSTS, "--launcher=slurm"], "not in a Slurm job; submit one with --slurm='--nodes=3 "),
        (["--hosts=h1,h1", "--launcher=slurm", "--slurm=--nodes=2"], "h1 is named twice"),
        ([HOSTS, "--launcher=kubernetes"], "give --image"),
        ([HOSTS, "--config.learner.num_gpus=1"], "their host a has 0: write --hosts=a:gpus=1"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(status_of, tmp_path, capsys, flags, message):
    command = ("train", "--topology=multi_machine", "--env=CartPole-v1", *flags)
    assert status_of(*command, f"--run_dir={tmp_path / 'run'}") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("distrl: ") and message in line
    assert not (tmp_path / "run").exists()
