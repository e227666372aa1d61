"""A table in shared memory as it stood at one moment, copied out without holding its lock."""

import json
from pathlib import Path

import numpy as np

from distrl.replay.columns import Block, Columns
from distrl.replay.shared.slots import INSERTS, SAMPLES, RingSlots
from distrl.replay.shared.table import SharedTable


class SharedSnapshot:
    """See `distrl.replay.table.files.TableSnapshot`.

    Slots are copied as samples are: without the lock, and afterwards it is looked whether their
    keys are still the same. Slots that are given up are written to again as late as can be, so that
    little is gone even of a table that changes all the time.
    """

    def __init__(self, table: SharedTable, columns: Columns, stored: Block):
        """Args: stored: the table's data, as `columns` has it."""
        self.columns = columns
        self._table, self._stored = table, stored
        self.priorities: np.ndarray | None = None
        store, rng = table.store, None
        with table.lock:
            self._slots = store.ready()
            self._keys = store.key[self._slots]
            inserts, samples = table.count(INSERTS), table.count(SAMPLES)
            if isinstance(store, RingSlots):
                self.priorities, rng = store.ring.priorities(), store.ring.rng_state
        self.size = len(self._slots)
        first = inserts - self.size
        self.facts = {"inserts": inserts, "samples": samples, "first": first, "rng": rng}

    def read(self, start: int, stop: int) -> tuple[Block, int]:
        slots, keys = self._slots[start:stop], self._keys[start:stop]
        block = self.columns.take(self._stored, slots)
        with self._table.lock:
            late = np.flatnonzero(self._table.store.key[slots] != keys)
        if len(late) == 0:
            return block, 0
        gone = int(late[-1]) + 1
        return block.split(gone, self.columns.has_time)[1], gone


def restore_rng(table: SharedTable, saved: Path) -> None:
    """Sets this process's choice of samples to that of the process that saved the table."""
    state = json.loads((saved / "table.json").read_text())["rng"]
    if isinstance(table.store, RingSlots) and state is not None:
        table.store.ring.rng_state = state
        table.reseeds = False
