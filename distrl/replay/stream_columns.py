"""Unfinished windows of streams that are not in lockstep."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from distrl.replay.columns import Columns
from distrl.replay.stream_index import StreamIndex


class StreamColumns:
    """Columns in which each stream has its own slot (along the stream axis) and its own next row.

    Attributes:
      columns: the unfinished windows.
      pending: the states with which later windows begin; their streams have the same slots.
      rows: the next row of each slot.
    """

    def __init__(
        self,
        ids: npt.NDArray[np.int32],
        columns: list[npt.NDArray[Any]],
        pending: list[list[npt.NDArray[Any]]],
        row: int,
        life: int,
    ):
        """Args:
        ids: int32 `[n]`, the initial streams.
        columns: their columns.
        pending: their states, see above.
        row: the next row of all of them.
        life: the life of all of them.
        """
        self.columns = columns
        self.pending = pending
        self.rows = np.full(len(ids), row)
        self._lives = np.full(len(ids), life)
        self._index = StreamIndex(ids)

    def find(
        self,
        ids: npt.NDArray[np.int32],
        columns: Columns,
        make_pending: Callable[[int], list[list[npt.NDArray[Any]]]],
    ) -> npt.NDArray[Any]:
        """Returns the slots of `ids`; allocates slots for new streams.

        Args:
          ids: int32 `[B]`.
          columns: the columns of an unroll.
          make_pending: allocates `pending` for a number of streams.
        """
        slots, known = self._index.find(ids)
        if known.all():
            return slots
        count, more = len(self._index), int((~known).sum())
        if count + more > len(self.rows):
            capacity = max(2 * count, count + more)
            self._grow(capacity, columns, make_pending(capacity))
        self.rows[count : count + more] = 0
        self._index.add(ids[~known])
        return self._index.find(ids)[0]

    def _grow(self, capacity: int, columns: Columns, pending: list[list[npt.NDArray[Any]]]) -> None:
        count = len(self._index)
        grown = columns.allocate(capacity).columns
        for new, old, time in zip(grown, self.columns, columns.has_time):
            if time:
                new[:, :count] = old[:, :count]
            else:
                new[:count] = old[:count]
        for states, old_states in zip(pending, self.pending):
            for new, old in zip(states, old_states):
                new[:count] = old[:count]
        self.columns, self.pending = grown, pending
        self.rows = np.concatenate([self.rows[:count], np.zeros(capacity - count, int)])
        self._lives = np.concatenate([self._lives[:count], np.zeros(capacity - count, int)])

    def begin_life(self, slots: npt.NDArray[Any], life: int) -> npt.NDArray[Any]:
        """Returns the next row of each slot: 0 for a stream whose life has changed."""
        rows = self.rows[slots]
        rows[self._lives[slots] != life] = 0
        self._lives[slots] = life
        return rows

    def any_begins(self, ids: npt.NDArray[np.int32], life: int | None, period: int) -> bool:
        """Returns whether any of `ids` is unknown, begins a window, or is in another life."""
        slots, known = self._index.find(ids)
        if not known.all():
            return True
        if (self.rows[slots] % period == 0).any():
            return True
        return life is not None and bool((self._lives[slots] != life).any())
