"""The interface of a table to its clients."""

import threading
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from distrl.replay.columns import Block, Columns
from distrl.replay.config import ReplayConfig
from distrl.replay.table.info import TableInfo
from distrl.types import Sample


class Table(Protocol):
    """A table in this process, or a client's handle of one in shared memory."""

    def insert(self, block: Block, stop: threading.Event | None, timeout: float) -> None:
        """Inserts the unrolls of `block` in order, as soon as there is room.

        Raises:
          Stopped, DeadlineExceeded: the remaining unrolls were not inserted.
        """

    def sample(self, stop: threading.Event | None, timeout: float | None) -> Sample:
        """Returns a batch. Raises as `ReplayReader.sample`."""

    def update_priorities(self, keys: npt.NDArray[np.uint64], priorities: npt.NDArray[Any]) -> None:
        """Sets priorities, float64 `[n]`, of keys, uint64 `[n]`, which were checked."""

    def discard(self, keys: npt.NDArray[np.uint64], oldest: int) -> None:
        """As `ReplayReader.discard`."""

    def can_sample(self) -> bool:
        """Returns whether `sample` would return without waiting."""

    @property
    def is_prioritized(self) -> bool:
        """Whether the table currently samples by priority."""

    def reconfigure(self, **changes: object) -> TableInfo:
        """As `TableReplayBuffer.reconfigure`."""

    def info(self) -> TableInfo:
        """Returns the table's counts and limits."""

    @property
    def columns(self) -> Columns:
        """The columns of its unrolls."""

    def read(self, indices: slice) -> Block:
        """Returns copies of unrolls in the table; the oldest has index 0."""

    def prefill(self, block: Block) -> None:
        """As `Experience.extend`."""

    def save(self, config: ReplayConfig, folder: Path, timeout: float) -> dict[str, Any]:
        """Saves the table's current contents while it stays in use; see `files.save`.

        Args:
          config: the settings with which the table was made.
          folder: a folder that does not exist yet.
          timeout: seconds that a server may be silent.
        """
