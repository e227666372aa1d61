"""Items: what a remote table hands out at a time, and what a Reverb table stores.

An item is a block of `unrolls_per_item` unrolls. Reverb stores it as one column of bytes (see
`distrl.replay.columns`): its costs are per item and column, and a message of one column costs about
half of one with a column for each field. The reader knows the columns.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from distrl.replay.columns import Block, Columns


class Item(NamedTuple):
    """A sampled item."""

    key: int
    probability: float  # with which the table chose it
    mass: float  # sum of all `priority ** priority_exponent`; of a uniform table, of its items
    size: int  # number of items in the table at that time
    block: Block


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
