"""The contents of a table as a list of unrolls."""

from collections.abc import Iterator

import numpy as np

from distrl.replay.columns import Block
from distrl.replay.insert_priorities import PriorityOf, with_priorities
from distrl.replay.table.table import Table
from distrl.types import Trajectory


class Experience:
    """The unrolls of a table in this process or in shared memory, the oldest first.

    `experience[i]` is one unroll, `[T + 1, ...]`; `experience[a:b]` has several, `[T + 1, n, ...]`.
    Both are copies, with `probability` 1, and do not count as samples. While other clients insert,
    the same index may mean another unroll the next time: take a slice of unrolls that belong
    together.
    """

    def __init__(self, table: Table, priority_of: PriorityOf | None = None):
        """Args:
        table: a `LocalTable`, or a client's handle of a shared one.
        priority_of: see `ReplayConfig`.
        """
        self._table = table
        self._priority_of = priority_of

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
        """Iterates over the current contents."""
        block = self._table.read(slice(None))
        return (self._one(block, i) for i in range(block.size))

    def _one(self, block: Block, i: int) -> Trajectory:
        columns = self._table.columns
        leaves = [c[:, i] if time else c[i] for c, time in zip(block.columns, columns.has_time)]
        return columns.trajectory(Block(leaves, 1), np.ones((), np.float32))

    def extend(self, unrolls: Trajectory) -> None:
        """Inserts unrolls as the newest.

        They are exempt from the rate limiter: its bounds move with them, so that no sample is due.
        A uniform or prioritized table takes any number and keeps the newest `max_size`; a queue
        must have room for all of them.

        Args:
          unrolls: `[T + 1, n, ...]`; their `probability` is ignored.

        Raises:
          SpecError: they differ from the table's struct or unroll length.
          ConfigError: a queue has no room for them; none was inserted.
        """
        columns = self._table.columns
        block = with_priorities(columns.block(unrolls), columns, self._priority_of)
        self._table.prefill(block)
