"""Where this project lies, for processes that are started by a command."""

from pathlib import Path

import distrl

PACKAGE = Path(distrl.__file__).parent
"""The folder of the package `distrl`."""

ROOT = PACKAGE.parent
"""What a process needs on its `PYTHONPATH` to import this very code."""
