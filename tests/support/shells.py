"""Interactive shells on a terminal of their own."""

import os
import pty
import select
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path


class Terminal:
    """A program on a pseudo-terminal, and what it has printed."""

    def __init__(self, command: Sequence[str], folder: Path, env: Mapping[str, str]):
        ours, theirs = pty.openpty()
        self._fd = ours
        self._process = subprocess.Popen(
            command, cwd=folder, env=dict(env), stdin=theirs, stdout=theirs, stderr=theirs,
            start_new_session=True,
        )  # fmt: skip
        os.close(theirs)
        self.output = ""

    def type(self, text: str) -> None:
        """Presses keys; what a shell is not ready for waits in the terminal."""
        os.write(self._fd, text.encode())

    def wait_for(self, text: str, seconds: float = 60.0) -> None:
        """Reads until it has printed a text."""
        deadline = time.monotonic() + seconds
        while text not in self.output:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._fd], [], [], left)[0]:
                raise AssertionError(f"no {text!r} in {self.output!r}")
            self.output += os.read(self._fd, 65536).decode(errors="replace")

    def close(self) -> None:
        """Ends the program."""
        self._process.kill()
        self._process.wait()
        os.close(self._fd)
