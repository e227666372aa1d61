"""Commands that tests wait for. One that hangs says where before it is ended."""

import os
import signal
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def finish(
    command: list[str], timeout: float = 110.0, **options: object
) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run` with its output captured, in the project's folder.

    Args:
      command: a Python program.
      timeout: seconds; past it the test fails with the stacks of the program's threads.
      options: of `subprocess.Popen`.
    """
    env = {**os.environ, "PYTHONFAULTHANDLER": "1"}
    with subprocess.Popen(
        command, cwd=ROOT, env=env, text=True,
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},
    ) as process:  # fmt: skip
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)
            try:
                out, err = process.communicate(timeout=10.0)
            finally:
                process.kill()
            raise AssertionError(
                f"not ended within {timeout:g} s: {command}\n{out[-4000:]}\n{err}"
            ) from None
    return subprocess.CompletedProcess(command, process.returncode, out, err)
