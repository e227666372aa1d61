"""The insert count of a Reverb table, which a thread asks for about once a second."""

import time
from collections.abc import Callable

from distrl.errors import DeadlineExceeded, Stopped
from distrl.replay.table.info import TableInfo

_INTERVAL = 1.0  # seconds between two requests


class InsertCount:
    """The count for `Sample.inserts`, at most a second old."""

    def __init__(self, ask: Callable[[], TableInfo], is_queue: bool):
        """Args:
        ask: returns the table's counts; may wait for the server, within its deadline.
        is_queue: whether the table is a queue, whose samples are counted instead.
        """
        self._ask = ask
        self._is_queue = is_queue
        self._count = 0
        self._due = 0.0

    def __call__(self) -> int:
        """Returns the last count; asks for a new one when due."""
        if time.monotonic() >= self._due:
            try:
                info = self._ask()
                self._count = info.samples if self._is_queue else info.inserts
            except (DeadlineExceeded, RuntimeError, Stopped):
                pass  # the wait for the server's next item notices, and reports it
            self._due = time.monotonic() + _INTERVAL
        return self._count
