"""Items: what a remote table hands out at a time, and what a Reverb table stores.

An item is a block of `unrolls_per_item` unrolls. Reverb stores it as one column of bytes (see
`distrl.replay.columns`): its costs are per item and column, and a message of one column costs about
half of one with a column for each field. The reader knows the columns.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from distrl.replay.columns import Block, Columns
from distrl.types import Sample


class Item(NamedTuple):
    """A sampled item."""

    key: int
    probability: float  # the probability with which the table chose it
    mass: float  # sum of all `priority ** priority_exponent`; of a uniform table, of its items
    size: int  # number of items in the table at that time
    block: Block


def joined(items: Sequence[Item], columns: Columns) -> Sample:
    """Returns a sample of these items, which may be from several tables of one kind."""
    per_item = items[0].block.size
    batch = columns.join([item.block for item in items])
    probability = np.array([item.probability for item in items], np.float32)
    keys = np.array([item.key for item in items], np.uint64)
    return Sample(columns.trajectory(batch, probability.repeat(per_item)), keys.repeat(per_item))


class ItemPacker:
    """Combines and splits blocks into blocks of one item each."""

    def __init__(self, columns: Columns, unrolls_per_item: int):
        """Args:
        columns: the columns of the unrolls.
        unrolls_per_item: unrolls of every item.
        """
        self._columns = columns
        self._per_item = unrolls_per_item
        self._pending: list[Block] = []  # fewer unrolls than an item has
        self._pending_size = 0

    def add(self, block: Block) -> Sequence[Block]:
        """Returns the items that `block` completes; keeps the remaining unrolls."""
        if not self._pending and block.size == self._per_item:
            return (block,)
        self._pending.append(block)
        self._pending_size += block.size
        return list(self._items())

    def _items(self) -> Iterator[Block]:
        while self._pending_size >= self._per_item:
            parts, size = [], 0
            while size < self._per_item:
                block = self._pending.pop(0)
                if size + block.size > self._per_item:
                    block, rest = block.split(self._per_item - size, self._columns.has_time)
                    self._pending.insert(0, rest)
                parts.append(block)
                size += block.size
            self._pending_size -= size
            yield self._columns.join(parts)
