"""Which Python `make` takes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
HERE = ".".join(map(str, sys.version_info[:2]))


def find(python: str, without: str = "") -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name != without}
    return subprocess.run(
        [ROOT / "tools" / "setup_env.sh", "--find"],
        env={**env, "PYTHON": python},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_python_is_named_by_its_path_or_version():
    by_path = find(sys.executable)
    assert by_path.returncode == 0, by_path.stderr
    version, interpreter = by_path.stdout.split()
    assert version == HERE
    assert Path(interpreter).resolve() == Path(sys.executable).resolve()
    newest = find("newest").stdout.split()[0]
    assert int(newest.partition(".")[2]) >= sys.version_info[1]


def test_a_python_is_found_without_a_home():
    done = find("newest", without="HOME")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("3.")


@pytest.mark.parametrize(
    ("python", "message"),
    [
        ("python3.9", "distrl is for CPython"),
        ("/nowhere/python", "PYTHON=/nowhere/python cannot be used: it is not a program"),
        ("cat", "PYTHON=cat cannot be used: "),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(python, message):
    done = find(python)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert message in line
