"""Blocks of unrolls as one buffer."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs as dm_specs

from distrl.errors import SpecError
from distrl.replay.columns import Block, Columns
from distrl.specs import EnvironmentSpec, trajectory_struct


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
    sent = np.concatenate(columns.pieces(columns.join(parts)._replace(buffer=None)))
    for other in (joined, *(columns.unpack(data, 5) for data in (buffer, repacked, sent))):
        for actual, expected in zip(other.columns, block.columns, strict=True):
            np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("size", [1, 3])
def test_pieces_are_views_of_large_rows(size):
    """And together what `pack` copies, padding included."""
    observation = {
        "frame": dm_specs.Array((5, 999), np.int8),
        "none": dm_specs.Array((0,), np.int8),
    }
    spec = EnvironmentSpec(observation, dm_specs.DiscreteArray(6, np.int32))
    columns = Columns(trajectory_struct(spec, {"value": np.zeros((), np.float32)}, ()), 2)
    whole = columns.allocate(size + 1)
    whole.buffer[64:] = np.arange(whole.buffer.nbytes - 64)
    _, part = whole.split(1, columns.has_time)
    pieces = columns.pieces(part)
    sent = columns.unpack(np.concatenate(pieces), size)
    for actual, expected in zip(sent.columns, part.columns, strict=True):
        np.testing.assert_array_equal(actual.view(np.uint8), np.array(expected).view(np.uint8))
    shared = [piece for piece in pieces if np.shares_memory(piece, whole.buffer)]
    assert sum(piece.nbytes for piece in shared) >= size * 3 * 5 * 999
    (only,) = columns.pieces(whole)
    assert only is whole.buffer


def test_a_block_of_another_struct_is_refused(streams):
    block = Columns(streams.struct, 2).allocate(4)
    with pytest.raises(SpecError, match="differ"):
        Columns(streams.struct, 2).unpack(block.buffer, 3)
    other = streams.struct._replace(action=jax.ShapeDtypeStruct((), np.float32))  # the same size
    with pytest.raises(SpecError, match="differ"):
        Columns(other, 2).unpack(block.buffer, 4)


@pytest.mark.parametrize("size", [1, 7, 600])
def test_columns_begin_where_xla_takes_them_without_a_copy(streams, size):
    block = Columns(streams.struct, 20).allocate(size)
    assert [column.__array_interface__["data"][0] % 64 for column in block.columns] == [0] * len(
        block.columns
    )


class Parts(NamedTuple):
    """An observation whose leaves have every size that fits into words, and odd numbers of them."""

    image: object = dm_specs.Array((3, 5), np.uint8)
    flags: object = dm_specs.Array((3,), np.bool_)
    half: object = dm_specs.Array((1,), np.float16)
    brain: object = dm_specs.Array((3,), jnp.bfloat16)
    short: object = dm_specs.Array((), np.int16)
    nothing: object = dm_specs.Array((0, 2), np.int8)
    number: object = dm_specs.Array((2,), np.float32)


def columns_of(observation):
    spec = EnvironmentSpec(observation, dm_specs.DiscreteArray(6, np.int32))
    return Columns(trajectory_struct(spec, (), ()), 2)


@pytest.mark.parametrize("size", [1, 3])
def test_functions_of_one_array_take_a_sample_apart(size):
    columns = columns_of(Parts())
    block, rng = columns.allocate(size), np.random.default_rng(size)
    for column in block.columns:
        most = 2 if column.dtype == np.bool_ else 256
        memory = column.reshape(-1).view(np.uint8)
        memory[:] = rng.integers(0, most, memory.shape)
    probability = rng.random(size).astype(np.float32)
    sample = columns.sample(block, probability, np.arange(size, dtype=np.uint64), 7)
    assert sample.packed[0] is sample.trajectory and sample.inserts == 7
    words = sample.packed[1].view(np.uint32)
    taken = jax.jit(columns.from_words)(words, probability)
    assert jax.tree.structure(taken) == jax.tree.structure(sample.trajectory)
    for leaf, expected in zip(*map(jax.tree.leaves, (taken, sample.trajectory)), strict=True):
        assert (leaf.shape, leaf.dtype) == (expected.shape, expected.dtype)
        assert np.asarray(leaf).tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    "observation",
    [
        dm_specs.Array((2,), np.float64),  # JAX makes it float32
        dm_specs.Array((2,), np.int64),
        {"changeable": dm_specs.Array((2,), np.float32)},
    ],
)
def test_which_samples_are_not_packed(observation):
    columns = columns_of(observation)
    assert not columns.packs
    sample = columns.sample(columns.allocate(1), np.ones(1, np.float32), np.zeros(1, np.uint64), 0)
    assert sample.packed is None
