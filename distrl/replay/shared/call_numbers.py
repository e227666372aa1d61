"""How much a client's last numbered call has inserted, kept with the table.

A server that inserts for others may die between an insert and its answer. The client then repeats
the call, and the next server finds here how many of its unrolls are in the table.

Nothing here locks: every method needs the table's lock. As for a slot, the writer may die at any
instruction: a row that is open says which unrolls are being inserted, and `settle`, which may be
repeated, turns that into a count.
"""

import struct
import time
from typing import NamedTuple

import numpy as np

ROWS, COLUMNS = 1024, 9
_NUMBER, _DONE = 2, 3
_OPEN, _BEFORE, _FIRST, _COUNT = range(4, 8)  # the call's number + 1, or 0: the row is closed
_USED = 8  # time of the last use, in nanoseconds of the monotonic clock; 0: never
_ID = struct.Struct("=2q")


class Call(NamedTuple):
    """A call that may be repeated."""

    client: bytes  # [16], random
    number: int  # from 0 on; each call's is larger than that of the one before


class NumberedInserts:
    """A row for each client; a new client gets the least recently used row."""

    def __init__(self, ints: memoryview):
        """Args: ints: int64 `[ROWS * COLUMNS]`, initially zero."""
        self._ints = ints
        self._row_of: dict[bytes, int] = {}  # where a client's row began when it was last used

    def done(self, call: Call) -> int:
        """Returns how many unrolls of a call are in the table, or were and have left it.

        The client must not have inserted by a later call.
        """
        number, done = self.last(call.client)
        return done if number == call.number else 0

    def last(self, client: bytes) -> tuple[int, int]:
        """Returns the number of the last call that inserted, and its unrolls as `done` counts them.

        Args:
          client: the client, as in `Call`.

        Returns:
          -1 and 0 if the client has not inserted.
        """
        row = self._row(client)
        return (-1, 0) if row is None else (self._ints[row + _NUMBER], self._ints[row + _DONE])

    def begin(self, call: Call, first: int, count: int) -> int:
        """Notes the unrolls that are inserted next; returns the client's row, for `end`.

        Args:
          call: the call that inserts them.
          first: the key of the first unroll.
          count: number of unrolls.
        """
        ints, row = self._ints, self._row(call.client)
        if row is None:
            row = int(np.argmin(np.asarray(ints)[_USED::COLUMNS])) * COLUMNS
            ints[row + _NUMBER] = -1  # first: the numbers that follow belong to no call
            ints[row], ints[row + 1] = _ID.unpack(call.client)
        again = ints[row + _NUMBER] == call.number
        ints[row + _BEFORE] = ints[row + _DONE] if again else 0
        ints[row + _FIRST], ints[row + _COUNT] = first, count
        ints[row + _USED] = time.monotonic_ns()
        ints[row + _OPEN] = call.number + 1  # last: it opens the row
        return row

    def end(self, row: int, inserts: int) -> None:
        """Counts the unrolls of `begin`. Args: inserts: the table's inserts so far."""
        ints = self._ints
        inserted = min(max(0, inserts - ints[row + _FIRST]), ints[row + _COUNT])
        ints[row + _DONE] = ints[row + _BEFORE] + inserted
        ints[row + _NUMBER] = ints[row + _OPEN] - 1
        ints[row + _OPEN] = 0

    def settle(self, inserts: int) -> None:
        """Closes open rows, after a repair. Args: inserts: the table's inserts so far."""
        for index in np.flatnonzero(np.asarray(self._ints)[_OPEN::COLUMNS]).tolist():
            self.end(index * COLUMNS, inserts)

    def _row(self, client: bytes) -> int | None:
        """Returns where a client's row begins; None: it has none."""
        ints, (first, second) = self._ints, _ID.unpack(client)
        row = self._row_of.get(client)
        if row is None:
            rows = np.flatnonzero(np.asarray(ints)[::COLUMNS] == first)
            row = int(rows[0]) * COLUMNS if len(rows) else 0
        if (ints[row], ints[row + 1]) != (first, second):
            self._row_of.pop(client, None)
            return None
        if len(self._row_of) > ROWS:  # some clients in it have lost their rows
            self._row_of.clear()
        self._row_of[client] = row
        return row
