"""Signals as events of a loop."""

import select
import selectors
import signal
import socket
import time
from collections.abc import Sequence
from types import FrameType, TracebackType

WATCHED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)
RELAYED_INTERRUPT = signal.SIGRTMIN + 5  # Ctrl-C, from a guard (`launch/local/guard.py`)
_POLL_S = 0.05  # between two looks at all files, where waiting for one is refused
_NOTIFY = 0  # no signal has this number
_guarded: list[bool] = []  # not empty once there is a guard


def take_interrupts_from_guard() -> None:
    """Takes Ctrl-C from this process's guard: the terminal signals both, but it counts once."""
    _guarded.append(True)
    signal.signal(signal.SIGINT, ignore)


def interrupt_number() -> int:
    """Returns the number of the signal that means Ctrl-C in this process."""
    return RELAYED_INTERRUPT if _guarded else signal.SIGINT


def meaning(number: int) -> int | None:
    """Returns the signal that a received one means: SIGINT for Ctrl-C; None: it means nothing."""
    if _guarded and number == signal.SIGINT:
        return None
    return signal.SIGINT if number == RELAYED_INTERRUPT else number


def name_of(number: int) -> str:
    """Returns a signal's name; "signal 39" for one that has none, as most real-time signals."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def run_once(selector: selectors.BaseSelector, timeout: float) -> None:
    """Waits once for the registered files, and calls the `data` of those that are ready.

    Args:
      selector: keys without `data` (a `Signals`) only end the wait.
      timeout: seconds.

    Raises:
      OSError: waiting is refused. Nevertheless all `data` have been called, after a moment.
    """
    refused = None
    try:
        keys = [key for key, _ in selector.select(timeout)]
    except OSError as error:
        refused = error
        time.sleep(min(timeout, _POLL_S))
        keys = list(selector.get_map().values())  # none of them blocks
    for key in keys:
        if key.data is not None:
            key.data()
    if refused is not None:
        raise refused


def ignore(number: int, frame: FrameType | None) -> None:
    """Does nothing, as a signal handler: the wake-up descriptor has reported the signal."""


class Signals:
    """While entered, the watched signals make `fileno()` readable, and do nothing else.

    Handlers and the wake-up descriptor are restored at the exit. Main thread only.
    """

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    def __enter__(self) -> "Signals":
        self._wakeup = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        self._handlers = {}
        for number in {*WATCHED, interrupt_number()}:
            # Under nohup the end of the terminal does not end the program.
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
        with self._writer:  # closed whatever happens to the other
            self._reader.close()

    def fileno(self) -> int:
        return self._reader.fileno()

    def fds(self) -> list[int]:
        """Returns the descriptors that a forked child has to close."""
        return [self._reader.fileno(), self._writer.fileno()]

    def notify(self) -> None:
        """Makes `fileno()` readable; from any thread."""
        try:
            self._writer.send(bytes([_NOTIFY]))
        except BlockingIOError:
            return  # it is full, and so readable
        except OSError:
            return  # closed: the thread has outlived its launch

    def pending(self) -> Sequence[int]:
        """Returns the signals received since the last call; does not wait."""
        numbers: list[int] = []
        while select.select([self._reader], [], [], 0)[0]:
            numbers += self._reader.recv(4096)
        meanings = [meaning(number) for number in numbers if number != _NOTIFY]
        return [number for number in meanings if number is not None]
