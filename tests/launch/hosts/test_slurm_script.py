"""The batch script of a job, with a `distrl` and an `scontrol` that only exist in the test."""

import os
import subprocess
from pathlib import Path

import pytest

from distrl.launch.hosts.slurm import script


def run(folder: Path, command: str, restarts: str | None, signal: str | None) -> tuple[int, str]:
    """Runs the script of a command; a signal comes while it waits for that.

    Returns:
      Its status, and what it has told `scontrol`.
    """
    told = folder / "told"
    scontrol = folder / "scontrol"
    scontrol.write_text(f'#!/bin/sh\necho "$@" >> {told}\n')
    scontrol.chmod(0o755)
    environ = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "SLURM_JOB_ID": "17"}
    environ |= {} if restarts is None else {"SLURM_RESTART_COUNT": restarts}
    wait = f'wait() {{ builtin kill -{signal} $$; builtin wait "$@"; }}\n' if signal else ""
    text = wait + script(["bash", "-c", command], folder)
    done = subprocess.run(["bash", "-c", text], env=environ, timeout=60.0, check=False)
    return done.returncode, told.read_text() if told.exists() else ""


@pytest.mark.parametrize(
    ("command", "restarts", "signal", "status", "again"),
    [
        ("exit 0", None, None, 0, False),
        ("exit 1", None, None, 1, False),
        ("exit 2", None, None, 2, False),
        ("exit 143", None, None, 143, False),
        ("exec sleep 60", "50", "USR1", 143, True),  # its time is over
        ("exit 75", None, None, 75, True),
        ("exit 75", "9", None, 75, True),
        ("exit 75", "10", None, 75, False),
        ("exit 75", None, "TERM", 75, False),  # it is cancelled
    ],
)
def test_when_a_job_is_run_again(
    tmp_path: Path, command: str, restarts: str | None, signal: str | None, status: int, again: bool
):
    told = "requeue 17\n" if again else ""
    assert run(tmp_path, command, restarts, signal) == (status, told)
