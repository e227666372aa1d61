"""The output of nodes: a log file for each node, and the terminal."""

import collections
import errno
import os
import pathlib
import re
import select
import stat
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from distrl.launch.live.footer import Footer
from distrl.launch.supervision.fatal_dump import FatalDump
from distrl.launch.supervision.log_file import LogFile
from distrl.runtime.working_folder import shown

TAIL = 30  # lines kept for the report of a failure; the stacks of a crash take 20
LINE = 8192  # bytes; a longer line is shown in parts
_READER_GONE = (errno.EPIPE, errno.EIO, errno.EBADF)  # `| head`, or a closed terminal
COLOURS = (36, 33, 32, 34, 35, 96, 93, 92, 94, 95)

# Control characters, which a terminal must not get, and colours, which it may.
_CONTROL = re.compile(r"\x1b\[[0-9;]*m|[\x00-\x08\x0b-\x1f\x7f]")


def _visible(match: re.Match[str]) -> str:
    text = match.group()
    return text if len(text) > 1 else f"\\x{ord(text):02x}"


class Stream:
    """The launcher's stdout or stderr, written without blocking.

    A paused terminal or a pipe without a reader must not block the supervisor. Lines beyond the
    limit are counted and left out; the log files have them.

    Args:
      file: sys.stdout or sys.stderr.
      limit: bytes of buffered output beyond which lines are left out.

    Attributes:
      is_file: whether it is redirected to a file, which grows.
      is_terminal: whether it is a terminal that can move its cursor.
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
        except (
            AttributeError,
            OSError,
            ValueError,
        ):  # a replacement without a descriptor, or closed
            pass
        self.is_file = self._fd >= 0 and stat.S_ISREG(os.fstat(self._fd).st_mode)
        a_tty = self._fd >= 0 and os.isatty(self._fd)
        self.coloured = a_tty and not os.environ.get("NO_COLOR")
        self.is_terminal = a_tty and os.environ.get("TERM", "dumb") != "dumb"
        self._footer = Footer(self._fd)
        self._poll = select.poll()
        if self._fd >= 0:
            self._poll.register(self._fd, select.POLLOUT)

    def same_as(self, other: "Stream") -> bool:
        """Returns whether both write to the same file, and should share a buffer to keep order."""
        if min(self._fd, other._fd) < 0:
            return self._file is other._file
        return os.path.sameopenfile(self._fd, other._fd)

    def write(self, text: str, force: bool = False) -> None:
        """Takes whole lines.

        Args:
          text: the lines.
          force: take them even beyond the limit.
        """
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
            self._buffer += self._footer.around(text).encode(errors="replace")
            self.flush()

    @property
    def footer_size(self) -> tuple[int, int]:
        """Columns and rows that a footer may have."""
        return self._footer.size

    def show_footer(self, lines: Sequence[str]) -> None:
        """Keeps these lines below all others from now on; a terminal that is slow gets none."""
        with self._lock:
            if len(self._buffer) < select.PIPE_BUF or not lines:
                self._buffer += self._footer.replaced(lines).encode(errors="replace")
            self.flush()

    def waiting(self) -> bool:
        """Returns whether buffered output is left."""
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
                    self._file = None  # closed; the log files have everything
                self._buffer.clear()
                return
            while self._buffer:
                remaining = max(0.0, deadline - time.monotonic())
                try:
                    if not self._poll.poll(remaining * 1000):
                        return
                    # What a writable pipe takes without blocking.
                    del self._buffer[: os.write(self._fd, self._buffer[: select.PIPE_BUF])]
                except BlockingIOError:
                    return
                except OSError as error:
                    self._left_out += self._buffer.count(b"\n")
                    self._buffer.clear()
                    if error.errno in _READER_GONE:
                        self._limit = -1


class NodeLog:
    """One node's output: raw in its file, and line by line with its name on the terminal.

    Args:
      name: the node's name.
      path: the file, which is appended to.
      stream: the terminal; None: only the file.
      index: the node's index, for its colour.
      limit: limit of the file's size in bytes; see `LogFile`. Where the terminal is a file, a node
        shows at most as much there each day.
      hidden: returns whether a line is for the file only.
    """

    def __init__(
        self,
        name: str,
        path: pathlib.Path,
        stream: Stream | None,
        index: int,
        limit: int | None = None,
        hidden: Callable[[str], bool] = lambda line: False,
    ) -> None:
        self.path = path
        self._file = LogFile(path, limit)
        self._stream = stream
        self._hidden = hidden
        self._fatal_dump = FatalDump(path.name)
        self._shown_limit = limit if stream is not None and stream.is_file else None
        self._shown, self._day = 0, 0  # bytes, on which day of the process
        self._prefix = f"[{name}] "
        if stream is not None and stream.coloured:
            self._prefix = f"\x1b[{COLOURS[index % len(COLOURS)]}m[{name}]\x1b[0m "
        self._partial = bytearray()
        self._tail: collections.deque[str] = collections.deque(maxlen=TAIL)
        self._lock = threading.Lock()

    @property
    def broken(self) -> OSError | None:
        """Why the last output is missing in the file; None if it is there."""
        return self._file.broken

    def fds(self) -> list[int]:
        """Returns the descriptors that a forked child has to close."""
        return self._file.fds()

    def feed(self, data: bytes) -> None:
        """Takes a piece of output; from any thread."""
        with self._lock:
            self._file.write(data)
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
            self._file.close()

    def tail(self) -> list[str]:
        """Returns the last lines, as they were shown."""
        with self._lock:
            return list(self._tail)

    def _show(self, lines: list[bytearray]) -> None:
        if self._stream is None or self._is_full():
            lines = lines[-TAIL:]
        texts = []
        for line in lines:
            text = line.decode(errors="replace")
            if "\r" in text:  # a progress bar: its last state
                text = text.rstrip("\r").rpartition("\r")[2]
            text = _CONTROL.sub(_visible, text)
            for start in range(0, len(text), LINE) or (0,):
                texts += self._fatal_dump.shorten(text[start : start + LINE])
        self._tail.extend(texts)
        texts = [text for text in texts if not self._hidden(text)]
        if self._stream is None or not texts or self._is_full():
            return
        output = "".join(f"{self._prefix}{text}\n" for text in texts)
        self._shown += len(output)
        if self._is_full():
            where = f"{shown(self.path)}: supervision.log_limit_mb"
            output += f"{self._prefix}[more today only in {where}]\n"
        self._stream.write(output)

    def _is_full(self) -> bool:
        """Returns whether a terminal that is a file has today's limit of this node's output."""
        if self._shown_limit is None:
            return False
        day = int(time.monotonic() // 86_400)
        if day != self._day:
            self._shown, self._day = 0, day
        return self._shown > self._shown_limit
