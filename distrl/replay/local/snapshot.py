"""Tables in this process as they stood at one moment; see `table.files.TableSnapshot`."""

import threading

import numpy as np

from distrl.replay.columns import Block, Columns
from distrl.replay.table.ring import Ring


class FrozenQueue:
    """Blocks are never written to, so that it is enough to hold them."""

    priorities: np.ndarray | None = None

    def __init__(self, columns: Columns, blocks: list[Block], inserts: int, samples: int):
        """Args: blocks: the oldest first. inserts, samples: that the table has had."""
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


class FrozenRing:
    """What is overwritten meanwhile is gone."""

    def __init__(
        self,
        columns: Columns,
        stored: Block,
        ring: Ring,
        max_size: int,
        lock: threading.Condition,
    ):
        """Args: stored: the table's data. lock: the table's, which is held now."""
        counts = ring.counts
        self.columns = columns
        self.size = counts.size
        self.priorities = ring.priorities()
        self.facts = {
            "inserts": counts.inserts, "samples": counts.samples, "first": counts.deletes,
            "rng": ring.rng_state,
        }  # fmt: skip
        self._first = counts.deletes
        self._stored, self._counts, self._max_size, self._lock = stored, counts, max_size, lock

    def read(self, start: int, stop: int) -> tuple[Block, int]:
        keys = np.arange(self._first + start, self._first + stop)
        with self._lock:
            gone = min(max(0, self._counts.deletes - int(keys[0])), len(keys))
            return self.columns.take(self._stored, keys[gone:] % self._max_size), gone
