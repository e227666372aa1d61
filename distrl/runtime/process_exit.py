"""The end of a process that must not run exit handlers, such as a forked copy."""

import os
import sys
from typing import NoReturn


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
    os._exit(code)
