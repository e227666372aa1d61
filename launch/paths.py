"""Paths of code: the project's, for processes that a command starts, and the users'."""

import os
import re
import sys
from pathlib import Path

from distrl import version
from distrl.runtime.working_folder import absolute

PACKAGE = Path(version.__file__).parent
"""The folder of the package `distrl`."""

ROOT = PACKAGE.parent
"""The folder to put on a process's `PYTHONPATH` so that it imports this same code."""

_FILE = re.compile(r"(.*\.py)(?::([^/]*))?", re.DOTALL)


def python_command(module: str, python: str = sys.executable, folder: Path = ROOT) -> list[str]:
    """Returns the command that runs a module without the current folder on its path.

    That is what `-P` does since Python 3.11: with `-m` alone, a `json.py` or a `distrl/` in the
    current folder would be imported instead of the real one. PYTHONPATH stays in effect.

    Args:
      module: full name of the module.
      python: path of the Python interpreter.
      folder: the folder that has this project's code, if nothing else on the path has it.
    """
    run = f"import runpy; runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
    return code_command(run, python, folder)


def code_command(code: str, python: str = sys.executable, folder: Path = ROOT) -> list[str]:
    """Returns the command that runs code as `python_command` runs a module.

    Args:
      code: simple statements in one line.
      python, folder: see `python_command`.
    """
    path = f"import sys; sys.path[:] = [*filter(None, sys.path), {str(folder)!r}]"
    return [python, "-c", f"{path}; {code}"]


def file_and_name(target: str) -> tuple[str, str]:
    """Splits `FILE.py[:NAME]` or `MODULE[:NAME]`; the name may be "". Folders may have colons."""
    match = _FILE.fullmatch(target)
    if match is None:
        path, _, name = target.partition(":")
        return path, name
    return match[1], match[2] or ""


def python_path(folder: Path = ROOT) -> str:
    """Returns `PYTHONPATH=...` for a process on another host: a folder, then this process's own.

    Args:
      folder: the folder that has this project's code.
    """
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    here = [str(absolute(entry)) for entry in entries if entry]
    return "PYTHONPATH=" + os.pathsep.join(dict.fromkeys([str(folder), *here]))
