"""Snapshots of tables in shared memory, copied without holding the lock."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from distrl.replay.columns import Block, Columns
from distrl.replay.config import RateLimits
from distrl.replay.shared.slots import INSERTS, SAMPLES, RingSlots
from distrl.replay.shared.table import SharedTable
from distrl.replay.table.files import limit_facts


class SharedSnapshot:
    """See `distrl.replay.table.files.TableSnapshot`.

    Slots are copied as for samples: without the lock, checking afterwards whether their keys are
    unchanged. Freed slots are reused as late as possible, so that little is lost even of a table
    that changes all the time.
    """

    def __init__(self, table: SharedTable, columns: Columns, stored: Block):
        """Args:
        table: the table.
        columns: the columns of its unrolls.
        stored: the table's data.
        """
        self.columns = columns
        self._table, self._stored = table, stored
        self.priorities: npt.NDArray[Any] | None = None
        store, rng, largest = table.store, None, 0.0
        limits: RateLimits | None = None
        with table.lock:
            self._slots = store.present()
            self._keys = store.key[self._slots]
            inserts, samples = table.count(INSERTS), table.count(SAMPLES)
            if isinstance(store, RingSlots):
                self.priorities, rng = store.ring.priorities(), store.ring.rng_state
                largest, limits = store.ring.largest, store.counts.limits
            of_limits = limit_facts(table.config, table.batch_size, limits)
        self.size = len(self._slots)
        first = inserts - self.size
        self.facts = {
            "inserts": inserts, "samples": samples, "first": first, "rng": rng,
            "largest_priority": largest, **of_limits,
        }  # fmt: skip

    def read(self, start: int, stop: int) -> tuple[Block, int]:
        slots, keys = self._slots[start:stop], self._keys[start:stop]
        block = self.columns.take(self._stored, slots)
        with self._table.lock:
            stale = np.flatnonzero(self._table.store.key[slots] != keys)
        if len(stale) == 0:
            return block, 0
        gone = int(stale[-1]) + 1
        return block.split(gone, self.columns.has_time)[1], gone


def restore_rng(table: SharedTable, saved: Path) -> None:
    """Sets this process's random generator for samples to that of the process that saved."""
    state = json.loads((saved / "table.json").read_text())["rng"]
    if isinstance(table.store, RingSlots) and state is not None:
        table.store.ring.rng_state = state
        table.reseeds = False
