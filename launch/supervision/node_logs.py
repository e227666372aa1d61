"""Where the nodes' output goes: each node's own file, and the terminal."""

import collections
import os
import pathlib
import re
import select
import threading
import time
from typing import Any

TAIL = 30  # lines kept for the report of a failure; a crash alone leaves 20 of stacks
LINE = 8192  # bytes; a longer line is shown in pieces
CHUNK = 4096  # a pipe that can take anything can take this much without blocking (PIPE_BUF)
COLOURS = (36, 33, 32, 34, 35, 96, 93, 92, 94, 95)

# What may go to a terminal: everything but control characters; of escape sequences only colours.
_CONTROL = re.compile(r"\x1b\[[0-9;]*m|[\x00-\x08\x0b-\x1f\x7f]")


def _visible(match: re.Match[str]) -> str:
    found = match.group()
    return found if len(found) > 1 else f"\\x{ord(found):02x}"


class Stream:
    """The launcher's own stdout or stderr, written to without ever waiting for its reader.

    A terminal that is paused, or a pipe that no one reads, must not stop the supervisor. What does
    not fit is counted and left out; it is in the log files.
    """

    def __init__(self, file: Any, limit: int = 1 << 20) -> None:
        self._file = file
        self._limit = limit
        self._lock = threading.RLock()
        self._buffer = bytearray()
        self._left_out = 0
        self._fd = -1
        try:
            file.flush()
            self._fd = file.fileno()
        except (AttributeError, OSError, ValueError):  # a test's stand-in, or closed
            pass
        self.coloured = self._fd >= 0 and os.isatty(self._fd) and not os.environ.get("NO_COLOR")
        self._poll = select.poll()
        if self._fd >= 0:
            self._poll.register(self._fd, select.POLLOUT)

    def same_as(self, other: "Stream") -> bool:
        """Whether both lead to one place, so that one buffer keeps their order."""
        if min(self._fd, other._fd) < 0:
            return self._file is other._file
        return os.path.sameopenfile(self._fd, other._fd)

    def write(self, text: str, force: bool = False) -> None:
        """Takes whole lines; `force` takes them however much is waiting."""
        with self._lock:
            if len(self._buffer) > self._limit and not force:
                self._left_out += text.count("\n")
                return
            if self._left_out:
                text = (
                    f"[{self._left_out} lines left out: the terminal is slow; see the log files]\n"
                    + text
                )
                self._left_out = 0
            self._buffer += text.encode(errors="replace")
            self.flush()

    def waiting(self) -> bool:
        return bool(self._buffer)

    def flush(self, timeout: float = 0.0) -> None:
        """Writes what can be written now, or within `timeout` seconds."""
        deadline = time.monotonic() + timeout
        with self._lock:
            if self._fd < 0:
                try:
                    self._file.write(self._buffer.decode(errors="replace"))
                    self._file.flush()
                except (AttributeError, OSError, ValueError):
                    self._file = None  # gone; the log files have everything
                self._buffer.clear()
                return
            while self._buffer:
                left = max(0.0, deadline - time.monotonic())
                if not self._poll.poll(left * 1000):
                    return
                try:
                    del self._buffer[: os.write(self._fd, self._buffer[:CHUNK])]
                except BlockingIOError:
                    return
                except OSError:  # its reader is gone: `| head`, or a closed terminal
                    self._buffer.clear()
                    self._limit = -1


class NodeLog:
    """One node's output: raw to its file, in lines with its name to the terminal."""

    def __init__(self, name: str, path: pathlib.Path, stream: Stream | None, index: int) -> None:
        self.path = path
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._stream = stream
        self._prefix = f"[{name}] "
        if stream is not None and stream.coloured:
            self._prefix = f"\x1b[{COLOURS[index % len(COLOURS)]}m[{name}]\x1b[0m "
        self._partial = bytearray()
        self._tail: collections.deque[str] = collections.deque(maxlen=TAIL)
        self._lock = threading.Lock()
        self.broken: OSError | None = None  # why the file is no longer written

    def fds(self) -> list[int]:
        return [self._fd]

    def feed(self, data: bytes) -> None:
        """Takes output as it comes; from any thread."""
        with self._lock:
            self._write(data)
            self._partial += data
            *lines, rest = self._partial.split(b"\n")
            while len(rest) > LINE:
                lines.append(rest[:LINE])
                rest = rest[LINE:]
            self._partial = bytearray(rest)
            self._show(lines)

    def close(self) -> None:
        """Shows an unfinished last line and closes the file."""
        with self._lock:
            if self._partial:
                self._show([self._partial])
                self._partial = bytearray()
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1

    def tail(self) -> list[str]:
        """The last lines, as they were shown."""
        with self._lock:
            return list(self._tail)

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view and self._fd >= 0 and self.broken is None:
            try:
                view = view[os.write(self._fd, view) :]
            except OSError as error:  # a full disk must not take the supervisor down
                self.broken = error

    def _show(self, lines: list[bytearray]) -> None:
        if self._stream is None:
            lines = lines[-TAIL:]
        texts = []
        for line in lines:
            text = line.decode(errors="replace")
            if "\r" in text:  # a progress bar: what a terminal would be left with
                text = text.rstrip("\r").rpartition("\r")[2]
            text = _CONTROL.sub(_visible, text)
            for start in range(0, len(text), LINE) or (0,):
                texts.append(text[start : start + LINE])
        self._tail.extend(texts)
        if self._stream is not None and texts:
            self._stream.write("".join(f"{self._prefix}{text}\n" for text in texts))
