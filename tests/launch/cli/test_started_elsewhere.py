"""Launchers whose program another command line runs: a job of Slurm, or what the user starts."""

import json
import re
from pathlib import Path

import pytest

from distrl import presets
from distrl.launch.hosts import slurm

HOSTS = "--hosts=a:address=localhost,b:address=localhost"


@pytest.fixture
def submitted(monkeypatch):
    """The commands that Slurm gets."""
    commands = []

    def run(command):
        commands.append(command)
        return "7\n"

    monkeypatch.delenv("SLURM_JOB_NODELIST", raising=False)
    monkeypatch.setattr(slurm, "_run", run)
    return commands


def test_a_job_is_submitted_for_hosts_that_are_named(status_of, tmp_path, capsys, submitted):
    command = ("train", "--topology=multi_machine", "--env=CartPole-v1", HOSTS, "--launcher=slurm")
    run_dir = tmp_path / "run"
    assert status_of(*command, "--slurm=--nodelist=a,b", f"--run_dir={run_dir}") == 0
    assert f"submitted job 7; everything is written to {run_dir}" in capsys.readouterr().out
    ((program, *options, script),) = submitted
    assert program == "sbatch" and options[-1] == "--nodelist=a,b"
    assert f"{HOSTS} --launcher=slurm --run_dir={run_dir}" in Path(script).read_text()


def test_a_job_is_not_submitted_from_within_a_job(
    status_of, tmp_path, capsys, submitted, monkeypatch
):
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-2]")
    assert status_of("train", "--launcher=slurm", "--slurm=--nodes=2", "--run_dir=run") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("distrl: --slurm would be ignored: this is a Slurm job already; submit")
    assert line.endswith("or leave it out")
    assert not submitted and not list(tmp_path.iterdir())


def test_a_job_needs_no_file_of_settings(status_of, tmp_path, submitted):
    """The file has the flag that a job refuses."""
    settings = {"launcher": "slurm", "slurm": "--nodes=2", "seed": 7}
    (tmp_path / "settings.json").write_text(json.dumps(settings))
    assert status_of("train", "--config_file=settings.json", "--run_dir=run") == 0
    ((*_, option, script),) = submitted
    assert option == "--nodes=2"
    run_dir = tmp_path / "run"
    text = Path(script).read_text()
    assert f"train --launcher=slurm --seed=7 --run_dir={run_dir} &" in text


@pytest.mark.parametrize("launcher", ["slurm", "commands", "kubernetes"])
def test_an_experiment_that_no_command_line_names_is_refused(
    status_of, tmp_path, capsys, submitted, launcher
):
    command = ("train", "--topology=multi_machine", HOSTS, f"--launcher={launcher}")
    options = ("--slurm=--nodes=2",) if launcher == "slurm" else ()
    run_dir = tmp_path / "run"
    made = presets.experiment("Pendulum-v1", "sac")
    assert status_of(*command, *options, f"--run_dir={run_dir}", load=lambda: made) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"distrl: --launcher={launcher}: the program is started by a command")
    assert "distrl train --experiment=FILE.py" in line
    assert not submitted and not list(tmp_path.iterdir())


def test_the_printed_line_needs_no_file_of_settings(status_of, tmp_path, capsys):
    """The file has flags that the launcher of that line refuses."""
    pytest.importorskip("cryptography")
    settings = {"launcher": "commands", "join_address": "a", "seed": 7}
    (tmp_path / "settings.json").write_text(json.dumps(settings))
    assert status_of("train", HOSTS, "--config_file=settings.json", "--run_dir=run") == 0
    (line,) = re.findall(r"^ *distrl train .*$", capsys.readouterr().out, re.MULTILINE)
    assert {"--seed=7", "--launcher=join", HOSTS} < set(line.split())
    assert not {"config_file", "join_address"} & set(re.findall(r"--(\w+)", line))
