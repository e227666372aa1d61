"""Runs what a reader of the documentation pastes, with this project on the path."""

import os
import subprocess
from pathlib import Path

from tests.support.commands import ROOT


def run(command: list[str], folder: Path, **environment: str) -> str:
    """Runs a command in a folder. Fails unless it succeeds; returns its stdout."""
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=220,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
