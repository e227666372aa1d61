"""Blocks of unrolls as one buffer."""

import jax
import numpy as np
import pytest

from distrl.errors import SpecError
from distrl.replay.columns import Block, Columns


def test_blocks_pack_split_and_join(streams):
    columns = Columns(streams.struct, 2)
    block = columns.allocate(5)
    rng = np.random.default_rng(0)
    for column in block.columns:
        column[...] = rng.integers(0, 100, column.shape)
    buffer = columns.pack(block)
    assert buffer is block.buffer
    parts = list(block.split(2, columns.has_time))
    joined = columns.join(parts)
    repacked = columns.pack(Block([c.copy() for c in block.columns], 5))
    for other in (joined, columns.unpack(buffer, 5), columns.unpack(repacked, 5)):
        for actual, expected in zip(other.columns, block.columns, strict=True):
            np.testing.assert_array_equal(actual, expected)


def test_a_block_of_another_struct_is_refused(streams):
    block = Columns(streams.struct, 2).allocate(4)
    with pytest.raises(SpecError, match="differ"):
        Columns(streams.struct, 2).unpack(block.buffer, 3)
    other = streams.struct._replace(action=jax.ShapeDtypeStruct((), np.float32))  # the same size
    with pytest.raises(SpecError, match="differ"):
        Columns(other, 2).unpack(block.buffer, 4)
