"""JSON messages, one a line, between a launcher and the agents of its hosts; never blocks."""

import contextlib
import json
import os
import selectors
from collections.abc import Callable
from typing import Any

READ = 1 << 20
LIMIT = 64 << 20  # bytes that may wait to be read, or for a line's end; above, the other is stuck


class JsonLineChannel:
    """Both ways over two descriptors, which it owns, under a selector.

    Args:
      selector: whose loop calls the `data` of what is ready.
      reader, writer: descriptors; made non-blocking.
      take: called with each message.
      ended: called once, with why, when the other side is gone.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        reader: int,
        writer: int,
        take: Callable[[dict[str, Any]], None],
        ended: Callable[[str], None],
    ) -> None:
        self._selector = selector
        self._reader, self._writer = reader, writer
        self.take, self.ended = take, ended
        self._in = bytearray()
        self._out = bytearray()
        self._open = self._writing = False
        for fd in (reader, writer):
            os.set_blocking(fd, False)
        selector.register(reader, selectors.EVENT_READ, self._read)
        self._open = True

    def fds(self) -> list[int]:
        """What a forked child has to close."""
        return [self._reader, self._writer] if self._open else []

    def waiting(self) -> int:
        """Bytes that are not on their way yet."""
        return len(self._out)

    def send(self, kind: str, **fields: Any) -> None:
        """Sends a message, now or when there is room; one to a side that is gone is dropped."""
        if not self._open:
            return
        self._out += json.dumps({"kind": kind, **fields}).encode() + b"\n"
        self._flush()
        if len(self._out) > LIMIT:
            self._end(f"it has not read {len(self._out) >> 20} MB")

    def close(self) -> None:
        """Ends it, without telling `ended`."""
        if not self._open:
            return
        self._open = False
        self._selector.unregister(self._reader)
        if self._writing:
            self._selector.unregister(self._writer)
        for fd in {self._reader, self._writer}:
            with contextlib.suppress(OSError):
                os.close(fd)

    def _end(self, why: str) -> None:
        if self._open:
            self.close()
            self.ended(why)

    def _flush(self) -> None:
        try:
            while self._out:
                del self._out[: os.write(self._writer, self._out[:READ])]
        except BlockingIOError:
            pass
        except OSError as error:
            self._end(f"the connection broke: {error.strerror}")
            return
        if bool(self._out) != self._writing:
            self._writing = not self._writing
            if self._writing:
                self._selector.register(self._writer, selectors.EVENT_WRITE, self._flush)
            else:
                self._selector.unregister(self._writer)

    def _read(self) -> None:
        try:
            data = os.read(self._reader, READ)
        except BlockingIOError:
            return
        except OSError as error:
            self._end(f"the connection broke: {error.strerror}")
            return
        if not data:
            self._end("the connection was closed")
            return
        self._in += data
        *lines, rest = self._in.split(b"\n")
        self._in = rest
        if len(rest) > LIMIT:
            self._end("it sent a line without end")
        for line in lines:
            if not self._open:
                return
            try:
                message = json.loads(line)
                kind = message["kind"]
            except (ValueError, TypeError, KeyError):
                self._end(f"it sent what is no message: {bytes(line[:80])!r}")
                return
            if isinstance(kind, str):
                self.take(message)
