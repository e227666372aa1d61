"""What lies where in the file of a table in shared memory."""

from collections.abc import Callable

import numpy as np

from distrl.replay.config import ReplayConfig
from distrl.replay.shared import clients
from distrl.replay.shared.lock import LOCK_BYTES
from distrl.replay.shared.settings import SETTINGS_BYTES
from distrl.replay.table.sum_tree import SumTree

HEADER_BYTES = 4096  # JSON: what the file is
SLOT_ARRAYS = ("word", "key", "free", "order", "time")  # int64 `[slots]`; see shared_slots.py
_ALIGNMENT = 64
_INTS = 24


class Layout:
    """Where things lie in the file."""

    def __init__(self, config: ReplayConfig, batch_size: int, data_bytes: Callable[[int], int]):
        """Args: data_bytes: of so many slots."""
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
            "members": 8 * clients.MAX_CLIENTS * clients.COLUMNS,
            **dict.fromkeys(SLOT_ARRAYS, 8 * self.slots),
            "sums": 8 * SumTree.nodes(ring),
            "priorities": 8 * ring,
            "data": data_bytes(self.slots),
        }
        self.offsets: dict[str, int] = {}
        end = HEADER_BYTES
        for name, nbytes in self.sizes.items():
            self.offsets[name] = end
            end += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        self.nbytes = end

    def views(self, memory: np.ndarray) -> dict[str, np.ndarray]:
        """The parts of the file's bytes, uint8."""
        return {
            name: memory[offset : offset + self.sizes[name]]
            for name, offset in self.offsets.items()
        }
