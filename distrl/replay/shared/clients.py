"""The clients of a table in shared memory: a row for each, with its process and its waits.

Nothing here locks: every method that changes something needs the table's lock.
"""

import time
from typing import Any

import numpy as np
import numpy.typing as npt

from distrl.errors import ConfigError
from distrl.replay.table.info import Wait
from distrl.shared_memory.process import Process

MAX_CLIENTS = 1024
COLUMNS = 5
NAME_BYTES = 48
ROOM, SAMPLES = 2, 3  # what a client waits for: the column with the start time of the wait
_ROLES = 4  # bits: which of the two the client has asked for so far
_PID, _START = 0, 1
_NAMES = {ROOM: "room", SAMPLES: "samples"}


class Clients:
    """Rows of clients. A client's number is that of its row, from 1 on."""

    def __init__(
        self,
        rows: npt.NDArray[Any],
        names: npt.NDArray[np.uint8],
        waiting: memoryview,
        lost: memoryview,
        wanted: memoryview,
    ):
        """Args:
        rows: int64 `[MAX_CLIENTS, COLUMNS]`, initially zero. Times are nanoseconds of the
          monotonic clock, which all processes of a machine share.
        names: uint8 `[MAX_CLIENTS, NAME_BYTES]`, initially zero.
        waiting: int64 `[COLUMNS]`, the number of clients waiting for `ROOM` and for `SAMPLES`; an
          upper bound until `recount`.
        lost: int64 `[COLUMNS]`, the id of the last process that asked for `ROOM` or `SAMPLES` and
          died; 0 once another client asks for the same.
        wanted: int64 `[1]`: least number of unrolls that a wait for `ROOM` is for; 0: unknown.
        """
        self._rows, self._names = rows, names
        self.waiting = waiting
        self._lost = lost
        self._wanted = wanted

    def join(self, process: Process, name: str = "") -> int:
        """Registers a client; returns its number.

        Args:
          process: the process that uses the table for the client.
          name: the client's name, for messages, cut to `NAME_BYTES`; "": the process's name.

        Raises:
          ConfigError: there are too many clients.
        """
        unused = np.flatnonzero(self._rows[:, _PID] == 0)
        if len(unused) == 0:
            raise ConfigError(f"a shared table takes at most {MAX_CLIENTS} clients")
        row = int(unused[0])
        self._rows[row, _START:] = process.start, 0, 0, 0
        text = "".join(letter if letter.isprintable() else "?" for letter in name)
        cut = text.encode(errors="replace")[:NAME_BYTES].ljust(NAME_BYTES, b"\0")
        self._names[row] = np.frombuffer(cut, np.uint8)
        self._rows[row, _PID] = process.pid  # last: it makes the row valid
        return row + 1

    def leave(self, client: int) -> None:
        """Unregisters a client, which must hold no slots."""
        self._rows[client - 1, _PID] = 0

    def remove_dead(self, client: int, process: Process) -> None:
        """Unregisters a client of a dead process, and notes what the process asked for."""
        self.leave(client)
        for what in _NAMES:
            if self._rows[client - 1, _ROLES] & 1 << what:
                self._lost[what] = process.pid

    def is_of(self, client: int, process: Process) -> bool:
        """Returns whether the number still belongs to this process."""
        return self._rows[client - 1, :2].tolist() == list(process)

    def dead(self) -> list[tuple[int, Process]]:
        """Returns the clients whose processes have ended."""
        rows = np.flatnonzero(self._rows[:, _PID])
        lives: dict[Process, bool] = {}
        dead = []
        for row in rows.tolist():
            process = Process(*self._rows[row, :2].tolist())
            if process.pid and not lives.setdefault(process, process.lives()):
                dead.append((row + 1, process))
        return dead

    def note_wait(self, client: int, what: int, waits: bool) -> None:
        """Records that a client starts or stops waiting for `ROOM` or `SAMPLES`."""
        self.waiting[what] += 1 if waits else -1
        self._rows[client - 1, what] = time.monotonic_ns() if waits else 0

    def want(self, count: int) -> None:
        """Records that a client waits for `ROOM` for so many unrolls."""
        self._wanted[0] = min(count, self._wanted[0] or count)

    @property
    def wanted(self) -> int:
        """The fewest unrolls for which a client waits for `ROOM`, or less."""
        return self._wanted[0] or 1

    def forget_wanted(self) -> None:
        """Resets `wanted` before all waits for `ROOM` wake: those that wait again call `want`."""
        self._wanted[0] = 0

    def take_role(self, client: int, what: int) -> None:
        """Records that a client inserts (asks for `ROOM`) or samples (asks for `SAMPLES`)."""
        self._rows[client - 1, _ROLES] |= 1 << what
        self._lost[what] = 0

    def lost(self, what: int) -> int:
        """Returns the id of the dead process that did this last, if no client does; else 0."""
        present = self._rows[:, _PID] != 0
        if (self._rows[present, _ROLES] & 1 << what).any():
            return 0
        return self._lost[what]

    def recount(self) -> None:
        """Recomputes `waiting`."""
        present = self._rows[self._rows[:, _PID] != 0]
        for what in _NAMES:
            self.waiting[what] = int(np.count_nonzero(present[:, what]))

    def waits(self) -> tuple[Wait, ...]:
        """Returns the current waits."""
        now = time.monotonic_ns()
        waits = []
        for row in np.flatnonzero(self._rows[:, _PID] * self._rows[:, ROOM:].any(axis=1)).tolist():
            pid, _, *since = self._rows[row].tolist()
            name = bytes(self._names[row]).rstrip(b"\0").decode(errors="ignore")
            waits += [
                Wait(name or f"process {pid}", _NAMES[what], (now - since[what - ROOM]) / 1e9)
                for what in (ROOM, SAMPLES)
                if since[what - ROOM]
            ]
        return tuple(waits)
