"""A connection between a launcher and a host daemon: JSON messages, one per line, non-blocking."""

import contextlib
import json
import os
import selectors
import threading
from collections.abc import Callable, Iterator
from typing import Any

READ = 1 << 20
ALIVE_S = 1.0  # between two signs of life
LIMIT = 64 << 20  # bytes of unsent data, or of one line; beyond that the other side is stuck


class JsonLineChannel:
    """Sends and receives messages over two descriptors, which it owns, in a selector's loop.

    A message is a dictionary whose "kind" is a string.

    Args:
      selector: the selector whose loop calls the `data` of every ready descriptor.
      reader, writer: descriptors; made non-blocking.
      on_message: called with each message.
      on_close: called once, with the reason, when the connection has broken.
      limit: bytes of one message that is received; may be changed.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        reader: int,
        writer: int,
        on_message: Callable[[dict[str, Any]], None],
        on_close: Callable[[str], None],
        limit: int = LIMIT,
    ) -> None:
        self._selector = selector
        self._reader, self._writer = reader, writer
        self.on_message, self.on_close = on_message, on_close
        self.limit = limit
        self._received = bytearray()
        self._unsent = bytearray()
        self._open = self._writing = False
        self._lock = threading.Lock()  # held while a message is written
        for fd in (reader, writer):
            os.set_blocking(fd, False)
        selector.register(reader, selectors.EVENT_READ, self._read)
        self._open = True

    def fds(self) -> list[int]:
        """Returns the descriptors that a forked child has to close."""
        return [self._reader, self._writer] if self._open else []

    def unsent(self) -> int:
        """Returns the number of bytes that are not sent yet."""
        return len(self._unsent)

    def send(self, kind: str, **fields: Any) -> None:
        """Sends a message, now or as soon as there is room; drops it if the channel is closed."""
        if not self._open:
            return
        line = json.dumps({"kind": kind, **fields}).encode() + b"\n"
        with self._lock:
            self._unsent += line
        self._flush()
        if len(self._unsent) > LIMIT:
            self._break(f"it has {len(self._unsent) >> 20} MB of messages left to read")

    @contextlib.contextmanager
    def kept_alive(self) -> Iterator[None]:
        """Sends "alive" every second from a thread, for work that keeps the loop from running.

        `send` may be called meanwhile; no process may be forked.
        """
        done = threading.Event()
        thread = threading.Thread(target=self._send_alive, args=(done,), name="alive", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _send_alive(self, done: threading.Event) -> None:
        while not done.wait(ALIVE_S):
            with self._lock:
                if not self._open:
                    return
                self._unsent += b"" if self._unsent else b'{"kind": "alive"}\n'
                try:
                    del self._unsent[: os.write(self._writer, self._unsent)]
                except BlockingIOError:
                    continue
                except OSError:
                    return  # the loop finds that out too

    def close(self) -> None:
        """Closes the connection without calling `on_close`."""
        if not self._open:
            return
        self._open = False
        self._selector.unregister(self._reader)
        if self._writing:
            self._selector.unregister(self._writer)
        for fd in {self._reader, self._writer}:
            with contextlib.suppress(OSError):
                os.close(fd)

    def _break(self, reason: str) -> None:
        if self._open:
            self.close()
            self.on_close(reason)

    def _flush(self) -> None:
        try:
            with self._lock:
                while self._unsent:
                    del self._unsent[: os.write(self._writer, self._unsent[:READ])]
        except BlockingIOError:
            pass
        except OSError as error:
            self._break(f"the connection broke: {error.strerror}")
            return
        if bool(self._unsent) != self._writing:
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
            self._break(f"the connection broke: {error.strerror}")
            return
        if not data:
            self._break("the connection was closed")
            return
        self._received += data
        *lines, self._received = self._received.split(b"\n")
        if len(self._received) > self.limit:
            self._break("it sent an endless line")
        for line in lines:
            if not self._open:
                return
            if len(line) > self.limit:
                self._break("it sent an endless line")
                return
            try:
                message = json.loads(line)
                kind = message["kind"]
            except (ValueError, TypeError, KeyError, RecursionError):
                self._break(f"it sent a malformed message: {bytes(line[:80])!r}")
                return
            if isinstance(kind, str):
                self.on_message(message)
