"""Python stacks of another process, read by py-spy."""

import shutil
import subprocess
import sys
from pathlib import Path

DUMP_S = 10.0


def dump(pid: int, timeout: float = DUMP_S) -> str:
    """Returns the Python stacks of a process's threads.

    The process does not take part: it may be stopped or blocked.

    Args:
      pid: the process.
      timeout: seconds for each attempt.

    Returns:
      What py-spy prints, or why it could not read the stacks.
    """
    program = py_spy()
    if program is None:
        return "py-spy is not installed: no stacks\n"
    # py-spy aborts on some native frames (EnvPool's); with --nonblocking it does not read them.
    for options in ([], ["--nonblocking"]):
        try:
            completed = subprocess.run(
                [program, "dump", *options, "--pid", str(pid)],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=timeout,
                errors="replace",
                check=False,
            )
        except OSError as error:  # no process, no descriptor left
            return f"py-spy could not be started: {error}\n"
        except subprocess.TimeoutExpired:
            return f"py-spy did not return from process {pid} within {timeout:g} s\n"
        if completed.returncode == 0:
            return completed.stdout
    return f"py-spy: status {completed.returncode} {completed.stderr.strip()}\n"


def py_spy() -> str | None:
    """Returns the path of py-spy; None: it is not installed."""
    beside_python = Path(sys.executable).with_name("py-spy")
    return str(beside_python) if beside_python.exists() else shutil.which("py-spy")
