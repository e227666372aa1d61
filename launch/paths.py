"""Paths of this project's code, for processes that are started by a command."""

from pathlib import Path

import distrl

PACKAGE = Path(distrl.__file__).parent
"""The folder of the package `distrl`."""

ROOT = PACKAGE.parent
"""The folder to put on a process's `PYTHONPATH` so that it imports this same code."""
