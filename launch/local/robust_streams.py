"""A stdout and a stderr that never fail, even if the reader, the terminal or the disk is gone."""

import codecs
import io
import os
import select
import sys
import threading
import time
from typing import Any

_ESCAPE = "backslashreplace"
_WITH_SURROGATES = "distrl.surrogateescape"
_FULL_S = 1.0  # seconds that a reader may take to make room where nobody waits for it
_CHECK_S = 0.2

_hurried = threading.Event()


def stop_waiting_for_readers() -> None:
    """From now on, drops output whose reader stalls, including output that waits now."""
    _hurried.set()


class _RobustFile(io.FileIO):
    """A file that drops what cannot be written.

    It waits for a reader that pauses, such as `| less`, until `stop_waiting_for_readers`; in a pipe
    that was set to not block, it never waits.
    """

    _stalled = False

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        try:
            # What a writable pipe takes without blocking.
            written = super().write(view[: select.PIPE_BUF]) if self._has_room() else None
        except OSError:
            written = None
        return len(view) if written is None else written

    def _has_room(self) -> bool:
        """Returns whether the reader has made room, in time."""
        poll = select.poll()
        poll.register(self.fileno(), select.POLLOUT)
        hurried_since = None
        while not poll.poll(0 if self._stalled else _CHECK_S * 1000):
            if _hurried.is_set() or not os.get_blocking(self.fileno()):
                hurried_since = hurried_since or time.monotonic()
                self._stalled = self._stalled or time.monotonic() - hurried_since > _FULL_S
                if self._stalled:
                    return False
        self._stalled = False
        return True


def open_closed_streams() -> None:
    """Opens /dev/null for standard streams that are closed.

    Otherwise the next file would get the number of a closed one, and everything that is printed.
    """
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
    for fd, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(fd, "w", encoding="utf-8", closefd=False))  # noqa: SIM115


def install_robust_streams() -> None:
    """Replaces sys.stdout and sys.stderr; see `open_closed_streams`, which is to come first."""
    for fd, name in ((1, "stdout"), (2, "stderr")):
        old = getattr(sys, name)
        old.flush()
        new = io.TextIOWrapper(
            io.BufferedWriter(_RobustFile(fd, "w", closefd=False)),
            getattr(old, "encoding", None) or "utf-8",
            _errors(old),
            line_buffering=name == "stderr" or getattr(old, "line_buffering", True),
        )
        setattr(sys, name, new)
        setattr(sys, f"__{name}__", new)


def _escaped(error: UnicodeError) -> tuple[bytes, int]:
    """Returns the bytes that surrogates stand for, and escapes of other characters."""
    assert isinstance(error, UnicodeEncodeError)
    characters = error.object[error.start : error.end]
    encoded = [
        each.encode("ascii", "surrogateescape" if "\udc80" <= each <= "\udcff" else _ESCAPE)
        for each in characters
    ]
    return b"".join(encoded), error.end


def escape_what_has_no_encoding() -> None:
    """Makes stdout and stderr escape characters that their encoding lacks, such as µ in ASCII."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_errors(stream))


def _errors(stream: Any) -> str:
    errors = getattr(stream, "errors", None)
    if errors == "surrogateescape":  # the locale C's: file names come out as they are
        codecs.register_error(_WITH_SURROGATES, _escaped)
        return _WITH_SURROGATES
    return _ESCAPE if errors in (None, "strict") else errors


def drop_unread_output() -> bool:
    """Sends output whose reader is gone to /dev/null; returns whether there is any."""
    poll = select.poll()
    for fd in (1, 2):
        poll.register(fd, 0)
    unread = [fd for fd, events in poll.poll(0) if events & select.POLLERR]
    for fd in unread:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, fd)
        os.close(null)
    return bool(unread)
