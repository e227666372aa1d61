"""The command that connects to a host's daemon, as a process of the launcher's machine."""

import os
import pathlib
import signal
import subprocess
from collections.abc import Sequence

from distrl.launch.hosts import ssh


class ConnectingCommand:
    """One process at a time, whose stderr is appended to a file. Nothing here waits for its end.

    Args:
      error_log: the file; earlier runs may have written to it.
    """

    def __init__(self, error_log: pathlib.Path) -> None:
        self._error_log = error_log
        # Bytes that earlier processes, or an earlier run, have written.
        self._errors_begin = error_log.stat().st_size if error_log.exists() else 0
        self._process: subprocess.Popen[bytes] | None = None
        self._ending: dict[subprocess.Popen[bytes], float] = {}  # and when they are killed

    def start(self, command: Sequence[str]) -> tuple[int, int]:
        """Starts the process. Raises OSError.

        Args:
          command: see `distrl.launch.hosts.ssh`.

        Returns:
          Descriptors to read from the daemon and to write to it, which the caller closes.
        """
        with open(self._error_log, "ab") as errors:
            self._errors_begin = errors.tell()
            self._process = process = ssh.start(command, errors.fileno())
        assert process.stdin is not None and process.stdout is not None
        reader = os.dup(process.stdout.fileno())
        try:
            writer = os.dup(process.stdin.fileno())
        except OSError:
            os.close(reader)
            raise
        process.stdin.close()
        process.stdout.close()
        return reader, writer

    def end(self, deadline: float) -> None:
        """Leaves the process to end by itself until `deadline`; then `reap` kills it."""
        if self._process is not None:
            self._ending[self._process] = deadline
            self._process = None

    def reap(self, now: float) -> bool:
        """Kills processes whose time is over; returns whether any are left that have not ended."""
        for process, deadline in list(self._ending.items()):
            if process.poll() is not None:
                del self._ending[process]
            elif now >= deadline:
                os.killpg(process.pid, signal.SIGKILL)
        return bool(self._ending)

    def last_errors(self) -> str:
        """Returns the last lines of the last process's stderr, for messages."""
        try:
            with open(self._error_log, "rb") as log:
                log.seek(self._errors_begin)
                errors = log.read()
        except OSError:
            return ""
        lines = errors.decode(errors="replace").splitlines()[-3:]
        return f" ({' | '.join(line.strip() for line in lines)})" if lines else ""
