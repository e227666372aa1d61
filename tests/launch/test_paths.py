"""Commands that start our processes import nothing from the current folder."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from distrl.launch.hosts import slurm
from distrl.launch.hosts.ssh import daemon_command
from distrl.launch.paths import ROOT, file_and_name, python_command

EVIL = "raise SystemExit('imported from the current folder')\n"


def run(command: list[str], folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    for name in ("distrl", "runpy", "json", "site", "launch"):
        (folder / f"{name}.py").write_text(EVIL)
    environ = {**os.environ, **env}
    return subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(
    ("target", "path", "name"),
    [
        ("exp.py", "exp.py", ""),
        ("exp.py:", "exp.py", ""),
        ("exp.py:pong", "exp.py", "pong"),
        ("a:b/exp.py", "a:b/exp.py", ""),
        ("a:b/exp.py:pong", "a:b/exp.py", "pong"),
        ("a.py:b/exp.py:pong", "a.py:b/exp.py", "pong"),
        ("package.python:make", "package.python", "make"),
        ("package", "package", ""),
    ],
)
def test_the_folder_of_a_file_may_have_colons(target: str, path: str, name: str):
    assert file_and_name(target) == (path, name)


@pytest.mark.parametrize("path", ["", str(ROOT)])
def test_a_module_runs_with_its_arguments(tmp_path: Path, path: str):
    done = run([*python_command("distrl"), "--version"], tmp_path, PYTHONPATH=path)
    assert done.returncode == 0 and re.fullmatch(r"distrl [\d.]+\S*\n", done.stdout), done.stderr


def test_the_current_folder_comes_first_without_it(tmp_path: Path):
    done = run([sys.executable, "-m", "distrl", "--version"], tmp_path)
    assert "imported from the current folder" in done.stderr


def test_no_command_of_another_host_uses_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    daemon = daemon_command("/opt/python", Path("/code"))
    assert daemon[:3] == ["env", "PYTHONPATH=/code", "/opt/python"]
    monkeypatch.setattr(slurm, "_run", lambda command: "7\n")
    slurm.submit(["--env=CartPole-v1"], tmp_path / "run", ())
    script = (tmp_path / "run" / slurm.SUBMITTED[0]).read_text()
    for command in (" ".join(daemon), script):
        assert "filter(None, sys.path)" in command and "-m distrl" not in command


def test_a_command_of_another_host_has_the_modules_that_this_one_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f":lib:/other:{ROOT}")
    assert (
        daemon_command(folder=Path("/code"))[1] == f"PYTHONPATH=/code:{tmp_path}/lib:/other:{ROOT}"
    )
    monkeypatch.setattr(slurm, "_run", lambda command: "7\n")
    slurm.submit(["--env=CartPole-v1"], tmp_path / "run", ())
    script = (tmp_path / "run" / slurm.SUBMITTED[0]).read_text()
    assert f"\nenv PYTHONPATH={ROOT}:{tmp_path}/lib:/other {sys.executable} " in script
