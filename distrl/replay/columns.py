"""The columns of a block of unrolls: each leaf of a `Trajectory` as one array, in one buffer.

A block is one allocation, so that a remote table can take and give it as one message without
packing it first. Both ends work out the same places from the same struct: columns lie in the
order of their names, and a fingerprint of names, dtypes and shapes comes first.
"""

import functools
import math
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from distrl.errors import SpecError
from distrl.types import TIME_FIELDS, Trajectory

_ALIGNMENT = 64  # bytes; a cache line, and what XLA wants of a buffer


class Block(NamedTuple):
    """Unrolls of `size` streams."""

    columns: list[np.ndarray]  # in the order of `Columns.names`; [T + 1, size, ...] or [size, ...]
    size: int
    buffer: np.ndarray | None = None  # uint8, in which the columns lie; None: somewhere else

    def split(self, at: int, has_time: Sequence[bool]) -> tuple["Block", "Block"]:
        """The first `at` unrolls and the others, as views."""
        first = [c[:, :at] if time else c[:at] for c, time in zip(self.columns, has_time)]
        rest = [c[:, at:] if time else c[at:] for c, time in zip(self.columns, has_time)]
        return Block(first, at), Block(rest, self.size - at)


class _Layout(NamedTuple):
    places: list[tuple[tuple[int, ...], np.dtype, int]]  # shape, dtype, offset in bytes
    nbytes: int
    fingerprint: int


class Columns:
    """Names, shapes and places of the columns of a `Trajectory`, without its `probability`.

    Attributes:
      names: of the columns, in the order of the trajectory's leaves.
      has_time: whether the column has the axes `[T + 1, B]`, or `[B]` alone.
      leaves: shape and dtype of one stream at one step.
    """

    def __init__(self, struct: Trajectory, unroll_length: int):
        """Args:
        struct: of one stream at one step, from `distrl.specs.trajectory_struct`.
        unroll_length: T.
        """
        nothing: Any = ()
        paths, self._structure = jax.tree_util.tree_flatten_with_path(
            struct._replace(probability=nothing)
        )
        self.names = [jax.tree_util.keystr(path) for path, _ in paths]
        self.leaves = [leaf for _, leaf in paths]
        self.has_time = [path[0].name in TIME_FIELDS for path, _ in paths]
        self.rows = unroll_length + 1
        self._layout = functools.lru_cache(maxsize=64)(self._make_layout)

    def shape(self, column: int, size: int) -> tuple[int, ...]:
        """Of a column in a block of `size` unrolls."""
        axes = (self.rows, size) if self.has_time[column] else (size,)
        return (*axes, *self.leaves[column].shape)

    def _make_layout(self, size: int) -> _Layout:
        places: list[tuple[tuple[int, ...], np.dtype, int]] = [((), np.dtype(np.uint8), 0)] * len(
            self.names
        )
        offset = _ALIGNMENT  # the fingerprint
        described = []
        for i in sorted(range(len(self.names)), key=self.names.__getitem__):
            shape, dtype = self.shape(i, size), np.dtype(self.leaves[i].dtype)
            places[i] = (shape, dtype, offset)
            described.append(f"{self.names[i]} {dtype.str} {shape}")
            nbytes = math.prod(shape) * dtype.itemsize
            offset += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        return _Layout(places, offset, zlib.crc32("\n".join(described).encode()))

    def nbytes(self, size: int) -> int:
        """Of the buffer of a block of `size` unrolls."""
        return self._layout(size).nbytes

    def allocate(self, size: int, buffer: np.ndarray | None = None) -> Block:
        """A block of `size` unrolls, its values not set, in `buffer` (uint8) or a new one."""
        layout = self._layout(size)
        if buffer is None:
            buffer = np.empty(layout.nbytes, np.uint8)
        buffer[:_ALIGNMENT].view(np.uint64)[:] = layout.fingerprint
        return Block(self._views(buffer, layout), size, buffer)

    def _views(self, buffer: np.ndarray, layout: _Layout) -> list[np.ndarray]:
        return [np.ndarray(shape, dtype, buffer, offset) for shape, dtype, offset in layout.places]

    def unpack(self, buffer: np.ndarray, size: int) -> Block:
        """The block of `size` unrolls whose buffer this is: views, no copies.

        Raises:
          SpecError: it was made from another struct, unroll length or size.
        """
        layout = self._layout(size)
        if buffer.nbytes != layout.nbytes or (
            int(buffer[:8].view(np.uint64)[0]) != layout.fingerprint
        ):
            raise SpecError(
                f"a block of {buffer.nbytes} bytes is not one of {size} unrolls of "
                f"{self.rows} steps ({layout.nbytes} bytes) with the columns "
                f"{', '.join(sorted(self.names))}: who wrote it and who reads it differ in "
                "environment, agent, unroll length or unrolls per item"
            )
        return Block(self._views(buffer, layout), size, buffer)

    def put(self, store: Block, places: np.ndarray | slice, block: Block) -> None:
        """Copies the unrolls of `block` to `places` (int64 `[block.size]`) of `store`."""
        for stored, column, time in zip(store.columns, block.columns, self.has_time):
            if time:
                stored[:, places] = column
            else:
                stored[places] = column

    def take(self, store: Block, places: np.ndarray) -> Block:
        """A block with copies of the unrolls at `places` (int64 `[n]`) of `store`."""
        block = self.allocate(len(places))
        for stored, out, time in zip(store.columns, block.columns, self.has_time):
            # The places lie inside; "raise" would gather into a copy first.
            np.take(stored, places, axis=1 if time else 0, out=out, mode="clip")
        return block

    def pack(self, block: Block) -> np.ndarray:
        """The block's buffer; copies only where its columns lie somewhere else."""
        if block.buffer is None:
            block = self.join([block], copy=True)
        assert block.buffer is not None
        return block.buffer

    def join(self, blocks: Sequence[Block], copy: bool = False) -> Block:
        """One block of the unrolls of `blocks` in turn; a single one as it is, unless `copy`."""
        if len(blocks) == 1 and not copy:
            return blocks[0]
        joined = self.allocate(sum(block.size for block in blocks))
        for i, (column, time) in enumerate(zip(joined.columns, self.has_time)):
            np.concatenate(
                [block.columns[i] for block in blocks], axis=1 if time else 0, out=column
            )
        return joined

    def block(self, trajectory: Trajectory) -> Block:
        """The block of a trajectory `[T + 1, n, ...]`, without its `probability`: no copies.

        Raises:
          SpecError: a leaf has another shape or dtype, or the structure is another.
        """
        nothing: Any = ()
        leaves, structure = jax.tree.flatten(trajectory._replace(probability=nothing))
        if structure != self._structure:
            raise SpecError(f"unrolls must be {self._structure}, got {structure}")
        leaves = [np.asarray(leaf) for leaf in leaves]
        first = leaves[self.has_time.index(False)]  # the stream ids, at the latest
        size = len(first) if first.ndim else 0
        for i, leaf in enumerate(leaves):
            shape, dtype = self.shape(i, size), np.dtype(self.leaves[i].dtype)
            if leaf.shape != shape or leaf.dtype != dtype:
                raise SpecError(
                    f"unrolls{self.names[i]}: expected {dtype}{list(shape)}, "
                    f"got {leaf.dtype}{list(leaf.shape)}"
                )
        return Block(leaves, size)

    def trajectory(self, block: Block, probability: np.ndarray) -> Trajectory:
        """The block as a `Trajectory`; `probability` is float32 `[B]`."""
        trajectory = jax.tree_util.tree_unflatten(self._structure, block.columns)
        return trajectory._replace(probability=probability)
