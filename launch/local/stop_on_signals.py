"""Ctrl-C, SIGTERM and SIGHUP for a program of one process, whatever its main thread does."""

import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from distrl.launch.local.robust_streams import stop_waiting_for_readers
from distrl.launch.local.tracing import TRACE_SIGNAL, obey_trace_order, take_trace_orders
from distrl.launch.supervision.signals import ignore, interrupt_number, meaning
from distrl.runtime.durations import longest_wait
from distrl.runtime.process_exit import announce

_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_END = 0  # marks the end of the signals, none of which has this number
_fork_handlers: list[bool] = []  # not empty once `_detach` is registered


class StopOnSignals:
    """While entered, the first signal sets an event, and a second Ctrl-C ends the process.

    A separate thread reacts to them: Python runs handlers in the main thread, which may take long
    to get to it while it compiles or waits in a library. Main thread only.

    Args:
      stop: the event.
      grace: seconds after the first signal.
      on_late: called with that signal's number when they are over; ends the process.

    Attributes:
      caught: the numbers of the signals so far.
    """

    def __init__(self, stop: threading.Event, grace: float, on_late: Callable[[int], None]) -> None:
        self.caught: list[int] = []
        self._stop, self._grace, self._on_late = stop, longest_wait(grace), on_late

    def __enter__(self) -> "StopOnSignals":
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._thread = threading.Thread(target=self._listen, name="signals", daemon=True)
        self._thread.start()
        # First, and last at the exit: a handler alone does nothing.
        self._wakeup = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        # Under nohup the end of the terminal does not end the program.
        self._handlers: dict[int, Any] = {
            number: signal.signal(number, ignore)
            for number in {*_STOPPING, interrupt_number()}
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN
        }
        for number in self._handlers:  # waits in libraries continue, as they do in nodes
            signal.siginterrupt(number, False)
        self._handlers[TRACE_SIGNAL] = signal.getsignal(TRACE_SIGNAL)
        take_trace_orders()
        if not _fork_handlers:
            _fork_handlers.append(True)
            os.register_at_fork(after_in_child=_detach)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup)
        os.write(self._writer, bytes([_END]))
        self._thread.join()
        os.close(self._reader)
        os.close(self._writer)

    def _listen(self) -> None:
        numbers, deadline = b"", None
        while _END not in numbers:
            if deadline is None and self.caught:
                deadline = time.monotonic() + self._grace  # whatever signals come later
            timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not select.select([self._reader], [], [], timeout)[0]:
                self._on_late(self.caught[0])
            numbers = os.read(self._reader, 16)
            for number in numbers:
                if number == TRACE_SIGNAL:
                    obey_trace_order()
                meant = meaning(number)
                if meant in _STOPPING:
                    self._on_signal(meant)

    def _on_signal(self, number: int) -> None:
        if self.caught:
            if number == signal.SIGINT:
                announce(code=128 + number, reason="killed by a second Ctrl-C", unsaid=True)
                os._exit(128 + number)
            return
        self.caught.append(number)
        self._stop.set()
        stop_waiting_for_readers()
        line = "distrl: stopping; press Ctrl-C again to kill immediately"
        print(line, file=sys.stderr, flush=True)


def _detach() -> None:
    """Keeps signals to a forked process from reaching this one."""
    signal.set_wakeup_fd(-1)
