"""Signals as something to wait for in a loop."""

import select
import selectors
import signal
import socket
from collections.abc import Sequence
from types import FrameType, TracebackType

WATCHED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)
NOTICE = 0  # no signal has this number


def run_once(selector: selectors.BaseSelector, timeout: float) -> None:
    """Waits for what is registered, at most `timeout` seconds, and calls the `data` of what came.

    What has no `data` (a `Signals`) only ends the wait.
    """
    for key, _ in selector.select(timeout):
        if key.data is not None:
            key.data()


def ignore(number: int, frame: FrameType | None) -> None:
    """A Python handler that does nothing: the wake-up descriptor has told of the signal."""


class Signals:
    """While it is entered, watched signals arrive as bytes at `fileno()`, and do nothing else.

    Handlers, the wake-up descriptor and the signal mask are as before when it is left. Main
    thread only.
    """

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    def __enter__(self) -> "Signals":
        self._wakeup = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        self._handlers = {}
        for number in WATCHED:
            # Under nohup the terminal's end is not our end.
            if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                continue
            self._handlers[number] = signal.signal(number, ignore)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        signal.set_wakeup_fd(self._wakeup)
        self._reader.close()
        self._writer.close()

    def fileno(self) -> int:
        return self._reader.fileno()

    def fds(self) -> list[int]:
        """What a forked child has to close."""
        return [self._reader.fileno(), self._writer.fileno()]

    def notify(self) -> None:
        """Wakes who waits at `fileno()`; from any thread."""
        try:
            self._writer.send(bytes([NOTICE]))
        except BlockingIOError:
            return  # so many bytes wait there that it wakes anyway
        except OSError:
            return  # closed: a thread outlived its launch, and there is no one left to tell

    def pending(self) -> Sequence[int]:
        """The numbers of the signals that have come since the last call; does not wait."""
        numbers: list[int] = []
        while select.select([self._reader], [], [], 0)[0]:
            numbers += self._reader.recv(4096)
        return [number for number in numbers if number != NOTICE]
