"""A table as its clients see it; and what it holds, as a list of unrolls."""

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

import numpy as np

from distrl.replay.columns import Block, Columns
from distrl.replay.table.info import TableInfo
from distrl.types import Sample, Trajectory

if TYPE_CHECKING:
    from distrl.replay.table.files import TableSnapshot


class Table(Protocol):
    """A table in this process, or a place at one in shared memory."""

    def insert(self, block: Block, stop: threading.Event | None, timeout: float) -> None:
        """Takes the unrolls of `block` in turn, as soon as there is room.

        Raises:
          Stopped, DeadlineExceeded: nothing of the rest could be taken.
        """

    def sample(self, stop: threading.Event | None, timeout: float | None) -> Sample:
        """A batch. Raises as `ReplayBuffer.sample`."""

    def update_priorities(self, keys: np.ndarray, priorities: np.ndarray) -> None:
        """Of keys uint64 `[n]` and priorities float64 `[n]`, which were checked."""

    def can_sample(self) -> bool:
        """True where `sample` would not wait."""

    @property
    def is_prioritized(self) -> bool:
        """Whether the table samples by priority, now."""

    def reconfigure(self, **changes: object) -> TableInfo:
        """As `ReplayBuffer.reconfigure`."""

    def info(self) -> TableInfo:
        """How the table stands."""

    @property
    def columns(self) -> Columns:
        """Of its unrolls."""

    def read(self, places: slice) -> Block:
        """Copies of unrolls that are there; the oldest has place 0."""

    def prefill(self, block: Block) -> None:
        """As `Experience.extend`."""

    def freeze(self) -> "TableSnapshot":
        """The table as it is now, to be saved while it goes on."""


class Experience:
    """The unrolls of a table in this process or in shared memory, the oldest first.

    `experience[i]` is one unroll, `[T + 1, ...]`; `experience[a:b]` has some, `[T + 1, n, ...]`.
    Both are copies, with `probability` 1. Nothing here counts as a sample. While others insert, a
    place is another unroll's the next time: take a slice of what belongs together.
    """

    def __init__(self, table: Table):
        """Args: table: a `LocalTable`, or what is under a client."""
        self._table = table

    def __len__(self) -> int:
        return self._table.info().size

    def __getitem__(self, index: int | slice) -> Trajectory:
        columns = self._table.columns
        if isinstance(index, slice):
            block = self._table.read(index)
            return columns.trajectory(block, np.ones(block.size, np.float32))
        block = self._table.read(slice(index, index + 1 or None))
        if block.size == 0:
            raise IndexError(f"unroll {index} of a table that has {len(self)}")
        return self._one(block, 0)

    def __iter__(self) -> Iterator[Trajectory]:
        """Of what is there now."""
        block = self._table.read(slice(None))
        return (self._one(block, i) for i in range(block.size))

    def _one(self, block: Block, i: int) -> Trajectory:
        columns = self._table.columns
        leaves = [c[:, i] if time else c[i] for c, time in zip(block.columns, columns.has_time)]
        return columns.trajectory(Block(leaves, 1), np.ones((), np.float32))

    def extend(self, unrolls: Trajectory) -> None:
        """Inserts unrolls, as the newest.

        The rate limiter does not hold them back, and nobody has to sample them: its bounds move
        with them. In a uniform or prioritized table they may be any number, of which the newest
        `max_size` stay; a queue must have room for them.

        Args:
          unrolls: `[T + 1, n, ...]`; their `probability` means nothing.

        Raises:
          SpecError: they are not of the table's struct and length.
          ConfigError: a queue has no room for them; none was inserted.
        """
        self._table.prefill(self._table.columns.block(unrolls))
