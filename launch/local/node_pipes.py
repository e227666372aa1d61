"""What a node's process sends to the launcher: its output and its messages."""

import collections
import contextlib
import json
import os
import selectors
import socket
from collections.abc import Callable
from typing import Protocol

from distrl.launch.supervision.node import Message
from distrl.launch.supervision.node_logs import NodeLog

READ_SIZE = 1 << 16  # bytes of output taken from one node at a time
MESSAGE_SIZE = 1 << 18  # bytes of a message at most
DRAIN_SIZE = 1 << 22  # bytes of output taken at most from a node that has ended
MAX_FAILED_READS = 10  # in a row, before what is read counts as closed


class Hub(Protocol):
    """A loop that reads what nodes send.

    Attributes:
      selector: the `data` of a key is called when it can be read.
      messages: gets the nodes' messages.
    """

    selector: selectors.BaseSelector
    messages: "collections.deque[Message]"


class NodePipes:
    """A socket pair for messages and a pipe for output, read in the launcher's loop.

    Args:
      hub: the loop.
      log: gets the output.

    Raises:
      OSError: there is no descriptor left; nothing stays open.

    Attributes:
      child_control: the child's end for messages, a SOCK_SEQPACKET.
      child_output: the child's end of the pipe for stdout and stderr.
    """

    def __init__(self, hub: Hub, log: NodeLog) -> None:
        self._hub = hub
        self._log = log
        self._failed_reads = 0  # in a row
        self._control, self.child_control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._output = self.child_output = -1
        try:
            self._output, self.child_output = os.pipe()
            self._control.setblocking(False)
            os.set_blocking(self._output, False)
            hub.selector.register(self._control, selectors.EVENT_READ, self._read_control)
            hub.selector.register(self._output, selectors.EVENT_READ, self._read_output)
        except BaseException:
            self.close_child_ends()
            self.close()
            raise

    def fds(self) -> list[int]:
        """Returns the launcher's open descriptors."""
        return [fd for fd in (self._control.fileno(), self._output) if fd >= 0]

    def close_child_ends(self) -> None:
        """Closes the child's ends, in the launcher."""
        _close(self.child_control.close)
        if self.child_output >= 0:
            _close(lambda: os.close(self.child_output))
            self.child_output = -1

    def drain(self) -> bool:
        """Reads what a node that has ended has left; False: call it again, a read has failed."""
        before = self._failed_reads
        while self._read_control():
            pass
        left = DRAIN_SIZE
        while left > 0 and (got := self._read_output()):
            left -= got
        return self._failed_reads <= before

    def close(self) -> None:
        """Closes the launcher's ends, as far as they are open."""
        self._close_control()
        self._close_output()

    def _read_output(self) -> int:
        """Feeds available output to the log; returns the number of bytes."""
        data = self._read(lambda: os.read(self._output, READ_SIZE)) if self._output >= 0 else None
        if data is None:
            return 0
        if not data:
            self._close_output()
        self._log.feed(data)
        return len(data)

    def _read_control(self) -> bool:
        """Takes one message; returns False if there is none."""
        if self._control.fileno() < 0:
            return False
        data = self._read(lambda: self._control.recv(MESSAGE_SIZE))
        if not data:
            if data is not None:
                self._close_control()
            return False
        try:
            self._hub.messages.append(Message(**json.loads(data)))
        except (ValueError, TypeError):  # other code in the node has written to its socket
            self._log.feed(f"[a malformed message to the launcher: {data[:80]!r}]\n".encode())
        return True

    def _read(self, read: Callable[[], bytes]) -> bytes | None:
        """Returns what `read` returns, b"" where the node has closed its end; None: nothing now."""
        try:
            data = read()
        except BlockingIOError:
            return None
        except ConnectionResetError:
            return b""
        except OSError as error:  # it may pass, and a node whose output is closed would fail
            self._failed_reads += 1
            if self._failed_reads < MAX_FAILED_READS:
                return None
            self._log.feed(f"[the launcher cannot read this node: {error}]\n".encode())
            return b""
        self._failed_reads = 0
        return data

    def _close_control(self) -> None:
        if self._control.fileno() >= 0:
            self._unregister(self._control)
            _close(self._control.close)

    def _close_output(self) -> None:
        if self._output >= 0:
            self._unregister(self._output)
            _close(lambda: os.close(self._output))
            self._output = -1

    def _unregister(self, file: socket.socket | int) -> None:
        if file in self._hub.selector.get_map():  # or opening has failed before it was
            self._hub.selector.unregister(file)


def _close(close: Callable[[], None]) -> None:
    """Closes a descriptor, which Linux releases even where it reports an error."""
    with contextlib.suppress(OSError):
        close()
