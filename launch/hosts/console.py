"""A host daemon's own lines, on its stderr."""

import contextlib
import socket
import sys
from collections.abc import Callable


class Console:
    """Shows a daemon's lines on its stderr; one that cannot be written is dropped."""

    def say(self, line: str) -> None:
        """Shows a line."""
        with contextlib.suppress(OSError, ValueError):  # its reader is gone, or it is closed
            print(
                f"distrl host-daemon on {socket.gethostname()}: {line}", file=sys.stderr, flush=True
            )

    note = say

    def try_to(self, what: str, task: Callable[[], object]) -> None:
        """Calls `task`; shows an OSError, which must not keep the caller from the rest.

        Args:
          what: names the task, in the message.
          task: what to do.
        """
        try:
            task()
        except OSError as error:
            self.say(f"{what} failed: {error}")
