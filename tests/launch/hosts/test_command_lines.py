"""The printed command lines do what they say when they are pasted."""

import os
import shlex
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from distrl.launch.hosts.command_lines import command_lines, mpirun_line, sheet
from distrl.programs.placement import Host, Placement
from tests.support.cluster.hosts import Hosts

COMMAND = ["distrl", "train", "--env=CartPole-v1", "--run_dir=runs/it's $HOME; one"]
FILE = "/srv/my run/credentials.pem"


PLACEMENT = Placement(
    (Host("h1"), Host("h2"), Host("h3")),
    {"learner/0": "h1", "replay/0": "h1", "actor/0": "h2", "actor/1": "h3", "actor/2": "h2"},
)


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A PATH on which `distrl` prints its host, its rank and its arguments, a line each."""
    script = tmp_path / "distrl"
    script.write_text('#!/bin/sh\nprintf "%s\\n" "$(hostname) $OMPI_COMM_WORLD_RANK" "$@" ""\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return f"{tmp_path}{os.pathsep}{os.environ['PATH']}"


def arguments(host: str) -> list[str]:
    return ["host-daemon", "--join=10.0.0.1:7421", f"--credentials={FILE}", f"--name={host}"]


def test_lines_are_for_a_shell(path: str):
    lines = command_lines(PLACEMENT, COMMAND, "10.0.0.1:7421", FILE)
    expected = [COMMAND[1:], arguments("h1"), arguments("h2"), arguments("h3")]
    for line, words in zip(lines, expected, strict=True):
        done = subprocess.run(
            ["sh", "-c", line],
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout.splitlines()[1:-1] == words, done.stderr


def test_a_daemon_may_be_run_by_another_command():
    daemon = ["/opt/my env/bin/python", "-m", "distrl.launch.hosts.daemon"]
    line = command_lines(PLACEMENT, COMMAND, "h1:7421", FILE, daemon)[1]
    assert shlex.split(line)[:3] == daemon and line.startswith("'/opt/my env/bin/python' -m ")


def test_the_sheet_says_what_runs_where():
    text = sheet(PLACEMENT, COMMAND, "h1:7421", FILE)
    lines = text.splitlines()
    commands = [line for line in lines if line and not line.startswith("#")]
    assert commands == command_lines(PLACEMENT, COMMAND, "h1:7421", FILE)
    assert lines[lines.index(commands[2]) - 1] == "# On h2 (actor/0, actor/2):"
    assert f"# {mpirun_line(PLACEMENT, 'h1:7421', FILE)}" in lines
    assert subprocess.run(["sh", "-n"], input=text, text=True, check=False).returncode == 0


def test_a_host_without_nodes_has_a_rank_and_no_line():
    placement = Placement((Host("h0"), Host("idle"), Host("h2")), {"learner/0": "h0", "x/0": "h2"})
    lines = command_lines(placement, COMMAND, "h0:7421", FILE)
    assert [shlex.split(line)[-1] for line in lines[1:]] == ["--name=h0", "--name=h2"]
    assert "idle" not in sheet(placement, COMMAND, "h0:7421", FILE).replace("h0,idle,h2", "")
    assert "--host h0,idle,h2 " in mpirun_line(placement, "h0:7421", FILE)


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="needs the Debian package openmpi-bin")
def test_mpirun_starts_one_daemon_on_each_host_in_their_order(hosts: Hosts, path: str):
    environ = {**os.environ, "PATH": path}
    if os.geteuid() == 0:
        environ |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    line = mpirun_line(PLACEMENT, "h1:7421", "/credentials.pem")
    done = hosts.exec("h1", ["sh", "-c", line], env=environ)
    lines = done.stdout.splitlines()
    assert sorted(each for each in lines if each.startswith("h")) == ["h1 0", "h2 1", "h3 2"]
    assert lines.count("--join=h1:7421") == lines.count("--credentials=/credentials.pem") == 3
