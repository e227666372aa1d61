"""How much a client's last numbered call has inserted, kept with the table.

A server that inserts for others may die between an insert and its answer. The client then repeats
the call, and the next server finds here how many of its unrolls are in the table.

Nothing here locks: every method needs the table's lock. As of a slot, what is written is complete
at any instruction: a row that is open tells which unrolls are being inserted, and `settle`, which
may be repeated, turns that into a count.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from distrl.replay.shared.slots import INSERTS

ROWS, COLUMNS = 1024, 9
ID_BYTES = 16  # of a client
_ID, _NUMBER, _DONE = slice(0, 2), 2, 3
_OPEN, _BEFORE, _FIRST, _COUNT = range(4, 8)  # the call's number + 1, or 0: the row is closed
_USED = 8  # when, in nanoseconds of the monotonic clock; 0: never


class Call(NamedTuple):
    """A call that may be repeated."""

    client: bytes  # [ID_BYTES], random
    number: int  # from 0 on; each call's is larger than that of the one before


class NumberedInserts:
    """A row for each client; a new client gets the row that has not been used for longest."""

    def __init__(self, rows: npt.NDArray[np.int64]):
        """Args: rows: int64 `[ROWS, COLUMNS]`, initially zero."""
        self._rows = rows

    def done(self, call: Call) -> int:
        """Returns how many unrolls of a call are in the table, or were and have left it."""
        row = self._row(call.client)
        return 0 if row is None or row[_NUMBER] != call.number else int(row[_DONE])

    @contextlib.contextmanager
    def counted(
        self, call: Call | None, counts: Callable[[int], int], count: int
    ) -> Iterator[None]:
        """Counts what is inserted in the context.

        Args:
          call: what inserts it; None: it is not counted.
          counts: returns the table's counts, see `slots.py`.
          count: unrolls that are to be inserted.
        """
        if call is not None:
            self._open(call, counts(INSERTS), count)
        yield
        if call is not None:
            self.settle(counts(INSERTS))

    def _open(self, call: Call, first: int, count: int) -> None:
        row = self._row(call.client)
        if row is None:
            row = self._rows[int(np.argmin(self._rows[:, _USED]))]
            row[_NUMBER] = -1  # first: what follows is of no call
            row[_ID] = np.frombuffer(call.client, np.int64)
        row[_BEFORE] = row[_DONE] if row[_NUMBER] == call.number else 0
        row[_FIRST], row[_COUNT], row[_USED] = first, count, time.monotonic_ns()
        row[_OPEN] = call.number + 1  # last: it opens the row

    def settle(self, inserts: int) -> None:
        """Closes the rows that are open. Args: inserts: into the table so far."""
        for row in map(self._rows.__getitem__, np.flatnonzero(self._rows[:, _OPEN])):
            inserted = min(max(0, inserts - int(row[_FIRST])), int(row[_COUNT]))
            row[_DONE] = row[_BEFORE] + inserted
            row[_NUMBER] = row[_OPEN] - 1
            row[_OPEN] = 0

    def _row(self, client: bytes) -> npt.NDArray[np.int64] | None:
        found = np.flatnonzero((self._rows[:, _ID] == np.frombuffer(client, np.int64)).all(1))
        return self._rows[found[0]] if len(found) else None
