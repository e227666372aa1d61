"""Who uses a table in shared memory: a row for each client, with its process and its waits.

Nothing here locks; `join`, `leave`, `note` and `recount` need the table's lock.
"""

import time

import numpy as np

from distrl.errors import ConfigError
from distrl.replay.shared.segment import Process
from distrl.replay.table.info import Wait

MAX_CLIENTS = 1024
COLUMNS = 5
ROOM, SAMPLES = 2, 3  # what a client waits for: the column that says since when
_ROLE = 4  # which of the two it has asked for so far, as bits
_PID, _START = 0, 1
_NAMES = {ROOM: "room", SAMPLES: "samples"}


class Members:
    """Rows of clients. A client's number is its row's, from 1 on."""

    def __init__(self, rows: np.ndarray, waiting: memoryview):
        """Args:
        rows: int64 `[MAX_CLIENTS, COLUMNS]`; zero at first. Times are nanoseconds of the monotonic
          clock, which is one for all processes of a machine.
        waiting: int64 `[COLUMNS]`, how many wait for `ROOM` and for `SAMPLES`: at least as many as
          do, until `recount`.
        """
        self._rows = rows
        self.waiting = waiting

    def join(self, process: Process) -> int:
        """A number for a new client of `process`.

        Raises:
          ConfigError: there are too many clients.
        """
        unused = np.flatnonzero(self._rows[:, _PID] == 0)
        if len(unused) == 0:
            raise ConfigError(f"a shared table takes at most {MAX_CLIENTS} clients")
        row = int(unused[0])
        self._rows[row, _START:] = process.start, 0, 0, 0
        self._rows[row, _PID] = process.pid  # last: it makes the row count
        return row + 1

    def leave(self, client: int) -> None:
        """The client is gone, and has nothing any more."""
        self._rows[client - 1, _PID] = 0

    def is_of(self, client: int, process: Process) -> bool:
        """True where the number is still this process's."""
        return self._rows[client - 1, :2].tolist() == list(process)

    def dead(self) -> list[tuple[int, Process]]:
        """Clients whose processes have ended."""
        rows = np.flatnonzero(self._rows[:, _PID])
        lives: dict[Process, bool] = {}
        found = []
        for row in rows.tolist():
            process = Process(*self._rows[row, :2].tolist())
            if process.pid and not lives.setdefault(process, process.lives()):
                found.append((row + 1, process))
        return found

    def note(self, client: int, what: int, waits: bool) -> None:
        """That a client begins or ends to wait for `ROOM` or `SAMPLES`."""
        self.waiting[what] += 1 if waits else -1
        self._rows[client - 1, what] = time.monotonic_ns() if waits else 0

    def take_role(self, client: int, what: int) -> None:
        """That a client inserts (asks for `ROOM`) or samples (asks for `SAMPLES`)."""
        self._rows[client - 1, _ROLE] |= 1 << what

    def has_role(self, client: int, what: int) -> bool:
        """Whether it did so far."""
        return bool(self._rows[client - 1, _ROLE] & 1 << what)

    def any_has_role(self, what: int) -> bool:
        """Whether a client that is here did so far."""
        return bool((self._rows[self._rows[:, _PID] != 0, _ROLE] & 1 << what).any())

    def recount(self) -> None:
        """Makes `waiting` anew."""
        there = self._rows[self._rows[:, _PID] != 0]
        for what in _NAMES:
            self.waiting[what] = int(np.count_nonzero(there[:, what]))

    def waits(self) -> tuple[Wait, ...]:
        """Who waits, for what, since when."""
        now = time.monotonic_ns()
        found = []
        for row in np.flatnonzero(self._rows[:, _PID] * self._rows[:, ROOM:].any(axis=1)).tolist():
            pid, _, *since = self._rows[row].tolist()
            found += [
                Wait(f"process {pid}", _NAMES[what], (now - since[what - ROOM]) / 1e9)
                for what in (ROOM, SAMPLES)
                if since[what - ROOM]
            ]
        return tuple(found)
