"""Other projects' packages named `launch` (ROS 2 has one) or `programs` are never imported."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import distrl
from distrl.launch.paths import python_command
from tests.support.commands import needs_launchpad

PACKAGE = Path(distrl.__file__).parent
FOREIGN = """import pathlib
with open({marker!r}, "a") as marker:
    marker.write(__name__ + "\\n")
raise RuntimeError("the foreign package " + __name__ + " was imported")
"""
BUSY_S = 110.0  # a program of several nodes takes 10 s on an idle machine


class Foreign:
    """A site-packages folder, a current folder and a PYTHONPATH entry with foreign packages."""

    def __init__(self, folder: Path) -> None:
        self._marker = folder / "imported"
        self.current, self._path, self._site = (folder / n for n in ("current", "path", "site"))
        for place in (self.current, self._path, self._site):
            for package in ("launch", "programs"):
                (place / package).mkdir(parents=True)
                text = FOREIGN.format(marker=str(self._marker))
                (place / package / "__init__.py").write_text(text)
        (self._site / "distrl").symlink_to(PACKAGE)

    def python(self, *arguments: str) -> subprocess.CompletedProcess:
        """Runs Python where every `import launch` finds a foreign package, and checks for none."""
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.current,
            env={**os.environ, "PYTHONPATH": f"{self._path}{os.pathsep}{self._site}"},
            input="",
            capture_output=True,
            text=True,
            timeout=BUSY_S,
            check=False,
        )
        imported = self._marker.read_text() if self._marker.exists() else ""
        assert imported == "", f"{arguments} imported {imported}:\n{done.stderr}"
        return done


@pytest.fixture
def foreign(tmp_path: Path) -> Foreign:
    return Foreign(tmp_path)


@pytest.mark.parametrize("package", ["launch", "programs"])
def test_the_foreign_packages_come_first(foreign, package):
    with pytest.raises(AssertionError, match=f"imported {package}"):
        foreign.python("-c", f"import {package}")


COMMANDS = {
    "version": (["--version"], 0, "distrl 0."),
    "help": (["--help"], 0, "usage: distrl train"),
    "status": (["status", "nowhere"], 2, "nowhere"),
    "stacks": (["stacks", "nowhere"], 2, "nowhere"),
    "actors": (["actors", "nowhere", "2"], 2, "nowhere"),
    "host-daemon": (["host-daemon"], 2, "--credentials"),
}


@pytest.mark.parametrize(("arguments", "status", "answer"), COMMANDS.values(), ids=COMMANDS)
def test_a_command(foreign, arguments, status, answer):
    done = foreign.python("-m", "distrl", *arguments)
    assert (done.returncode, answer in done.stdout + done.stderr) == (status, True), done.stderr


def test_the_host_daemon(foreign):
    """With stdin closed its connection is lost at once, which ends it."""
    for name in ("distrl", "json", "random", "absl"):  # in the current folder, which is not used
        shutil.copytree(foreign.current / "launch", foreign.current / name)
    done = foreign.python(*python_command("distrl.launch.hosts.daemon")[1:])
    assert (done.returncode, "Traceback" in done.stderr) == (1, False), done.stderr
    assert "connection" in done.stderr


SLOW_COMMANDS = {
    "tables": (["tables"], 0, ""),
    "refusal": (["train", "--env=CartPol-v1"], 2, "did you mean CartPole-v1"),
    "multi_machine": pytest.param(
        ["train", "--env=CartPole-v1", "--topology=multi_machine", "--hosts=h1:cores=x"],
        2,
        "cores",
        marks=needs_launchpad,
    ),
    "single_process": (
        ["train", "--env=CartPole-v1", "--topology=single_process", "--max_env_steps=2000"],
        0,
        "",
    ),
    "heavy_env": (
        ["train", "--env=CartPole-v1", "--topology=heavy_env", "--max_env_steps=2000"],
        0,
        "",
    ),
}


@pytest.mark.full
@pytest.mark.parametrize(
    ("arguments", "status", "answer"), SLOW_COMMANDS.values(), ids=SLOW_COMMANDS
)
def test_a_command_that_takes_seconds(foreign, arguments, status, answer):
    done = foreign.python("-m", "distrl", *arguments)
    assert (done.returncode, answer in done.stdout + done.stderr) == (status, True), done.stderr
