"""Ends a process without exit handlers, and sends facts to the process that guards it."""

import json
import os
import sys
from typing import Any, NoReturn

_guard: list[int] = []  # if guarded: this process's id, and the file to its guard


def announce_to(descriptor: int) -> None:
    """Makes `announce` write to a file, in this process but not in its forks."""
    _guard[:] = [os.getpid(), descriptor]


def announce(**facts: Any) -> None:
    """Sends plain data to this process's guard, if it has one.

    Args:
      **facts: `code`, the true exit status; `reason`, why it ends; `unsaid`, whether the guard
        is to print that; `run_dir` and `saved_before`, about its run.
    """
    if _guard and _guard[0] == os.getpid():
        os.write(_guard[1], json.dumps(facts).encode() + b"\n")


def command_pid() -> int:
    """Returns the id of the process that the user has started and may signal: a guard, or this."""
    return os.getppid() if _guard and _guard[0] == os.getpid() else os.getpid()


def exit_at_once(code: int) -> NoReturn:
    """Flushes stdout and stderr and ends this process, without destructors and exit handlers.

    Args:
      code: the exit status; 0 becomes 1 if the output cannot be written.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            code = code or 1
    announce(code=code)
    os._exit(code)
