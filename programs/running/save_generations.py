"""The checkpoint generations of several tasks' learners, as the monitor numbers them."""

import concurrent.futures
import time
from typing import Any

from distrl.programs.build import print_line
from distrl.programs.program import NodeHandle
from distrl.programs.remote import Peer

_POLL_S = 1.0  # between two calls of the monitor


class RemoteGenerations:
    """The monitor's `Generations`.

    A monitor that does not answer costs a generation, not the program.
    """

    def __init__(self, monitor: NodeHandle, before: int | None, timeout: float):
        """Args:
        monitor: name and client of the monitor.
        before: the generation before the first one to save in; None: the current one, for a learner
          that is restarted. It has saved in that, or is too late for it: the others did before.
        timeout: deadline of the call for the last generation, in seconds.

        Raises:
          PeerError: the monitor was asked for the current one, and does not answer.
        """
        self._monitor = monitor
        self._known: int = Peer(monitor).save_generation() if before is None else before
        self._timeout = timeout
        self._asked = 0.0
        self._call: concurrent.futures.Future[Any] | None = None

    def current(self) -> int:
        """See `Generations`: the last number that the monitor has answered."""
        if self._call is None:
            if time.monotonic() - self._asked >= _POLL_S:
                self._asked = time.monotonic()
                self._call = self._monitor.client.futures.save_generation()
        elif self._call.done():
            call, self._call = self._call, None
            self._note(call, None)
        return self._known

    def last(self) -> int:
        """See `Generations`; if the monitor does not answer, the number after the last known."""
        self._known += 1
        self._note(self._monitor.client.futures.save_generation(True), self._timeout)
        return self._known

    def _note(self, call: "concurrent.futures.Future[Any]", timeout: float | None) -> None:
        try:
            self._known = call.result(timeout)
        except Exception as error:  # whatever the substrate raises
            print_line(f"distrl: {self._monitor.name}.save_generation() failed: {error!r}")
