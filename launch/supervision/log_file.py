"""A log file within a limit, which a full disk does not break."""

import contextlib
import os
from pathlib import Path

_LEAST_PART = 4096  # bytes


class LogFile:
    """A file that is appended to, and whose middle is left out beyond a limit.

    A limited log has three files of a third of the limit each: `actor-0.log` has the newest output,
    `actor-0.previous.log` what came right before it, and `actor-0.first.log` the beginning.

    Args:
      path: the file. It is created if necessary, and appended to.
      limit: bytes of the three files together; None: one file without a limit.

    Attributes:
      path: as above.
      broken: why the last write failed; None if it did not. The next one tries again.

    Raises:
      OSError: the file cannot be opened.
    """

    def __init__(self, path: Path, limit: int | None = None) -> None:
        self.path = path
        self.broken: OSError | None = None
        self._part = None if limit is None else max(limit // 3, _LEAST_PART)
        self._left_out = 0  # bytes, since the last successful write
        self._fd = self._open()
        self._size = os.lseek(self._fd, 0, os.SEEK_END)

    def fds(self) -> list[int]:
        """Returns the descriptors that a forked child has to close."""
        return [self._fd] if self._fd >= 0 else []

    def write(self, data: bytes) -> None:
        """Appends data. What cannot be written is left out, which the file says afterwards."""
        if self._fd < 0:
            return
        rest = memoryview(data)
        try:
            if self._left_out:
                reason = self.broken.strerror if self.broken else None
                note = memoryview(f"\n[{self._left_out} bytes left out: {reason}]\n".encode())
                while note:
                    note = note[self._append(note) :]
                self._left_out = 0
            while rest:
                rest = rest[self._append(rest) :]
        except OSError as error:
            self.broken = error
            self._left_out += len(rest)
        else:
            self.broken = None

    def close(self) -> None:
        """Closes the file; further writes are dropped."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):  # every write has returned: nothing is buffered
                os.close(fd)

    def _append(self, data: memoryview) -> int:
        """Writes the beginning of `data`, and returns how many bytes that was."""
        if self._part is not None and self._size + len(data) > self._part:
            room = max(self._part - self._size, 0)
            line_end = bytes(data[:room]).rfind(b"\n") + 1
            if self._size and not line_end:
                self._rotate()
                line_end = bytes(data[: self._part]).rfind(b"\n") + 1
                room = self._part
            data = data[: line_end or room]
        written = os.write(self._fd, data)
        self._size += written
        return written

    def _rotate(self) -> None:
        first = self.path.with_suffix(f".first{self.path.suffix}")
        previous = self.path.with_suffix(f".previous{self.path.suffix}")
        with contextlib.suppress(FileNotFoundError):  # the user has removed it
            os.replace(self.path, previous if first.exists() else first)
        full, self._fd = self._fd, self._open()
        self._size = 0
        os.close(full)

    def _open(self) -> int:
        return os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
