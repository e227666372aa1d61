"""Ctrl-C and SIGTERM for a program of one process, whatever its main thread is busy with."""

import os
import select
import signal
import sys
import threading
from collections.abc import Callable
from types import TracebackType

from distrl.launch.supervision.signals import ignore

_NUMBERS = (signal.SIGINT, signal.SIGTERM)
_forks: list[bool] = []  # whether forks are taken care of


class StopOnSignals:
    """While it is entered, the first signal sets `stop`, and the second ends the process.

    A thread hears of them: Python runs handlers between two instructions of the main thread, which
    may be a long time coming while it compiles, or waits inside a library. Main thread only.

    Attributes:
      caught: the signals so far.
    """

    def __init__(self, stop: threading.Event, grace: float, late: Callable[[int], None]):
        """Args:
        stop: is set.
        grace: seconds after the first signal.
        late: called with its number when they are over; ends the process.
        """
        self.caught: list[int] = []
        self._stop, self._grace, self._late = stop, grace, late
        self._over = threading.Event()

    def __enter__(self) -> "StopOnSignals":
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._thread = threading.Thread(target=self._listen, name="signals", daemon=True)
        self._thread.start()
        self._old = {number: signal.signal(number, ignore) for number in _NUMBERS}
        self._wakeup = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        if not _forks:
            _forks.append(True)
            os.register_at_fork(after_in_child=_detach)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        signal.set_wakeup_fd(self._wakeup)
        for number, handler in self._old.items():
            signal.signal(number, handler)
        self._over.set()
        os.write(self._writer, b"\0")  # no signal has this number
        self._thread.join()
        os.close(self._reader)
        os.close(self._writer)

    def _listen(self) -> None:
        while not self._over.is_set():
            timeout = self._grace if self.caught else None
            if not select.select([self._reader], [], [], timeout)[0]:
                self._late(self.caught[0])
            for number in os.read(self._reader, 16):
                if number in _NUMBERS:
                    self._take(number)

    def _take(self, number: int) -> None:
        if self.caught:
            os._exit(128 + number)
        self.caught.append(number)
        self._stop.set()
        print(
            "distrl: stopping; press Ctrl-C again to kill immediately", file=sys.stderr, flush=True
        )


def _detach() -> None:
    """A process that is forked does not stop this one by its own signals."""
    signal.set_wakeup_fd(-1)
