"""Snapshots of tables in this process; see `distrl.replay.table.files.TableSnapshot`."""

import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from distrl.replay.columns import Block, Columns
from distrl.replay.table.ring import Ring


class QueueSnapshot:
    """Holds the queue's blocks, which are never modified."""

    priorities: npt.NDArray[Any] | None = None

    def __init__(self, columns: Columns, blocks: list[Block], inserts: int, samples: int):
        """Args:
        columns: the columns of the table's unrolls.
        blocks: the table's blocks, the oldest first.
        inserts: the table's insert count.
        samples: the table's sample count.
        """
        self.columns = columns
        self._blocks = blocks
        self._ends = np.cumsum([block.size for block in blocks])
        self.size = inserts - samples
        self.facts = {"inserts": inserts, "samples": samples, "first": samples, "rng": None}

    def read(self, start: int, stop: int) -> tuple[Block, int]:
        parts = []
        for i in range(int(np.searchsorted(self._ends, start, "right")), len(self._blocks)):
            block = self._blocks[i]
            begin = int(self._ends[i]) - block.size
            if begin >= stop:
                break
            if begin + block.size > stop:
                block, _ = block.split(stop - begin, self.columns.has_time)
            if begin < start:
                _, block = block.split(start - begin, self.columns.has_time)
            parts.append(block)
        return self.columns.join(parts), 0


class RingSnapshot:
    """Reads from the table itself, except unrolls that have been overwritten meanwhile."""

    def __init__(
        self,
        columns: Columns,
        stored: Block,
        ring: Ring,
        max_size: int,
        lock: threading.Condition,
    ):
        """Args:
        columns: the columns of the table's unrolls.
        stored: the table's data.
        ring: the table's ring.
        max_size: the table's capacity.
        lock: the table's lock, held by the caller.
        """
        counts = ring.counts
        self.columns = columns
        self.size = counts.size
        self.priorities = ring.priorities()
        self.facts = {
            "inserts": counts.inserts, "samples": counts.samples, "first": counts.deletes,
            "rng": ring.rng_state, "largest_priority": ring.largest,
        }  # fmt: skip
        self._first = counts.deletes
        self._stored, self._counts, self._max_size, self._lock = stored, counts, max_size, lock

    def read(self, start: int, stop: int) -> tuple[Block, int]:
        keys = np.arange(self._first + start, self._first + stop)
        with self._lock:
            gone = min(max(0, self._counts.deletes - int(keys[0])), len(keys))
            return self.columns.take(self._stored, keys[gone:] % self._max_size), gone
