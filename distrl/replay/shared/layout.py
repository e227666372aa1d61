"""The layout of a shared table's file."""

from collections.abc import Callable
from typing import Any

import numpy.typing as npt

from distrl.replay.config import ReplayConfig
from distrl.replay.shared import call_numbers, clients
from distrl.replay.shared.settings import SETTINGS_BYTES
from distrl.replay.table.sum_tree import SumTree
from distrl.shared_memory.lock import LOCK_BYTES

HEADER_BYTES = 4096  # JSON: see header.py
SLOT_ARRAYS = ("word", "key", "free", "order", "time")  # int64 `[slots]`: see slots.py
_ALIGNMENT = 64
_INTS = 24  # see slots.py and table.py for their meanings


class TableLayout:
    """The offsets of the file's parts.

    Attributes:
      slots: number of slots for unrolls.
      sizes: size of each part in bytes.
      offsets: offset of each part in bytes.
      nbytes: size of the file.
    """

    def __init__(self, config: ReplayConfig, batch_size: int, data_bytes: Callable[[int], int]):
        """Args:
        config: the table's settings.
        batch_size: unrolls per sample.
        data_bytes: returns the data's size for a number of slots.
        """
        spare = max(batch_size, config.max_size // 8)
        self.slots = config.max_size + spare
        # A uniform table may become a prioritized one.
        ring = 0 if config.table == "queue" else config.max_size
        self.sizes = {
            "lock": LOCK_BYTES,
            "room": _ALIGNMENT,
            "samples": _ALIGNMENT,
            "ints": 8 * _INTS,
            "margins": 16,
            "settings": SETTINGS_BYTES,
            "clients": 8 * clients.MAX_CLIENTS * clients.COLUMNS,
            "names": clients.MAX_CLIENTS * clients.NAME_BYTES,
            "numbered": 8 * call_numbers.ROWS * call_numbers.COLUMNS,
            **dict.fromkeys(SLOT_ARRAYS, 8 * self.slots),
            "sums": 8 * SumTree.nodes(ring),
            "priorities": 8 * ring,
            "largest": 8,  # the largest priority so far
            "data": data_bytes(self.slots),
        }
        self.offsets: dict[str, int] = {}
        end = HEADER_BYTES
        for name, nbytes in self.sizes.items():
            self.offsets[name] = end
            end += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        self.nbytes = end

    def views(self, memory: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
        """Returns views of the parts of the file's bytes, uint8."""
        return {
            name: memory[offset : offset + self.sizes[name]]
            for name, offset in self.offsets.items()
        }
