"""Waits for room or samples in a shared table, which detect that they can never end."""

import time
from collections.abc import Callable

from distrl.errors import Blocked
from distrl.replay.shared import clients
from distrl.replay.shared.table import SharedTable
from distrl.shared_memory.process import Process

_CHECK_INTERVAL = 0.5  # seconds of waiting between two checks for dead processes
REPLACED_WITHIN = 30.0  # seconds that a wait allows for the replacement of a dead client


class TableWait:
    """A wait for one of a table's events, as the condition of `wait_until`.

    The table's lock is its lock, held by the caller.
    """

    def __init__(
        self,
        table: SharedTable,
        what: int,
        may_end: Callable[[], bool] = lambda: False,
        wanted: int = 1,
    ):
        """Args:
        table: the table.
        what: `clients.ROOM` or `clients.SAMPLES`.
        may_end: returns whether another process is known that may end the wait, though it is
          perhaps not yet a client of the table.
        wanted: number of unrolls that a wait for room is for.
        """
        self._may_end, self._wanted = may_end, wanted
        self._table = table
        self._what = what
        self._event = table.events[what]
        self._began = self._checked = time.monotonic()

    def wait(self, timeout: float) -> None:
        """Waits for the event without the lock. Takes back the slots of dead clients.

        Raises:
          Stopped: the table was closed.
          PeerError: the table's owner is dead.
          Blocked: the wait cannot end.
        """
        table = self._table
        if self._what == clients.ROOM:
            table.clients.want(self._wanted)
        seen = self._event.read()
        dead: list[tuple[int, Process]] = []
        checked = False
        table.lock.release()
        try:
            changed = self._event.wait(seen, timeout)
            if not changed and time.monotonic() - self._checked > _CHECK_INTERVAL:
                checked = True
                table.check_owner()
                dead = table.clients.dead()
        finally:
            table.lock.acquire()
        table.check_open()
        if dead:
            table.take_back(dead)
        if checked:
            self._checked = time.monotonic()
            self._check_can_end()

    def _check_can_end(self) -> None:
        """Raises Blocked if the wait cannot end; with the lock held."""
        table = self._table
        other = clients.SAMPLES if self._what == clients.ROOM else clients.ROOM
        lost = table.clients.lost(other) if self._checked - self._began > REPLACED_WITHIN else 0
        if lost and not self._may_end():
            did = "sampled" if other == clients.SAMPLES else "inserted"
            raise Blocked(
                f"process {lost}, which {did}, is dead, and no other does: {table.describe()}"
            )
        check_admits(table)


def check_admits(table: SharedTable) -> None:
    """Raises Blocked if a table admits neither inserts nor samples, and none are in progress.

    With the table's lock held.
    """
    if not (table.store.busy() or table.store.can_insert(1) or table.can_sample()):
        raise Blocked(f"neither an insert nor a sample is admitted: {table.describe()}")
