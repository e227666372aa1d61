"""The columns of a block of unrolls: each leaf of a `Trajectory` as one array, in one buffer.

A block is one allocation, so that it can be sent to and from a remote table without packing. Both
ends derive the same offsets from the same struct: columns are in the order of their names, after a
fingerprint of names, dtypes and shapes.
"""

import functools
import math
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import numpy.typing as npt

from distrl.errors import SpecError
from distrl.types import TIME_FIELDS, Array, Sample, Trajectory

_ALIGNMENT = 64  # bytes; a cache line, and XLA's alignment of buffers
_PIECE_BYTES = 4096  # size of the smallest row that `pieces` does not copy


class Block(NamedTuple):
    """Unrolls of `size` streams.

    Attributes:
      columns: in the order of `Columns.names`, [T + 1, size, ...] or [size, ...].
      size: number of streams.
      buffer: uint8, which contains the columns; None: they are separate.
      priorities: [size], to insert with; None: the table's own.
    """

    columns: list[npt.NDArray[Any]]
    size: int
    buffer: npt.NDArray[Any] | None = None
    priorities: npt.NDArray[np.float64] | None = None

    def split(self, at: int, has_time: Sequence[bool]) -> tuple["Block", "Block"]:
        """Returns the first `at` unrolls and the others, as views."""
        first = [c[:, :at] if time else c[:at] for c, time in zip(self.columns, has_time)]
        rest = [c[:, at:] if time else c[at:] for c, time in zip(self.columns, has_time)]
        if self.priorities is None:
            return Block(first, at), Block(rest, self.size - at)
        of_first, of_rest = np.split(self.priorities, [at])
        return (
            Block(first, at, priorities=of_first),
            Block(rest, self.size - at, priorities=of_rest),
        )


class Batch(NamedTuple):
    """A sample as a block; see `Sample`."""

    block: Block
    probability: npt.NDArray[Any]  # float32 [batch_size]
    keys: npt.NDArray[np.uint64]
    inserts: int


class _Layout(NamedTuple):
    fields: list[tuple[tuple[int, ...], np.dtype[Any], int]]  # shape, dtype, offset in bytes
    nbytes: int
    fingerprint: int
    header: npt.NDArray[np.uint8]  # [_ALIGNMENT], of the fingerprint


class Columns:
    """Names, shapes and offsets of the columns of a `Trajectory`, without its `probability`.

    Attributes:
      names: column names, in the order of the trajectory's leaves.
      has_time: by column, whether its leading axes are `[T + 1, B]` rather than `[B]`.
      leaves: by column, shape and dtype for one stream at one step.
      rows: steps of an unroll, T + 1.
      packs: whether samples also have their trajectory `packed`, for functions of one array.
    """

    def __init__(self, struct: Trajectory, unroll_length: int):
        """Args:
        struct: one stream at one step, from `distrl.specs.trajectory_struct`.
        unroll_length: T.
        """
        nothing: Any = ()
        paths, self._structure = jax.tree_util.tree_flatten_with_path(
            struct._replace(probability=nothing)
        )
        self._sampled = jax.tree.structure(struct._replace(probability=0.0))  # it is the last leaf
        self.names = [jax.tree_util.keystr(path) for path, _ in paths]
        self.leaves = [leaf for _, leaf in paths]
        self.has_time = [path[0].name in TIME_FIELDS for path, _ in paths]
        self.rows = unroll_length + 1
        # Dicts and lists can be changed, and then a trajectory has other leaves than its memory.
        is_fixed = all(
            isinstance(key, jax.tree_util.GetAttrKey) for path, _ in paths for key in path
        )
        self.packs = is_fixed and all(leaf.dtype.itemsize in (1, 2, 4) for leaf in self.leaves)
        self._version = self.names.index(".version")
        self._layout = functools.lru_cache(maxsize=64)(self._make_layout)

    def shape(self, column: int, size: int) -> tuple[int, ...]:
        """Returns the shape of a column in a block of `size` unrolls."""
        axes = (self.rows, size) if self.has_time[column] else (size,)
        return (*axes, *self.leaves[column].shape)

    def _make_layout(self, size: int) -> _Layout:
        fields: list[tuple[tuple[int, ...], np.dtype[Any], int]] = [
            ((), np.dtype(np.uint8), 0)
        ] * len(self.names)
        offset = _ALIGNMENT  # the fingerprint
        described = []
        for i in sorted(range(len(self.names)), key=self.names.__getitem__):
            shape, dtype = self.shape(i, size), np.dtype(self.leaves[i].dtype)
            fields[i] = (shape, dtype, offset)
            described.append(f"{self.names[i]} {dtype.str} {shape}")
            nbytes = math.prod(shape) * dtype.itemsize
            offset += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        fingerprint = zlib.crc32("\n".join(described).encode())
        header = np.full(_ALIGNMENT // 8, fingerprint, np.uint64).view(np.uint8)
        return _Layout(fields, offset, fingerprint, header)

    def nbytes(self, size: int) -> int:
        """Returns the buffer size of a block of `size` unrolls, in bytes."""
        return self._layout(size).nbytes

    def allocate(self, size: int, buffer: npt.NDArray[Any] | None = None) -> Block:
        """Returns an uninitialized block of `size` unrolls in `buffer` (uint8) or a new one."""
        layout = self._layout(size)
        if buffer is None:
            room = np.empty(layout.nbytes + _ALIGNMENT, np.uint8)
            start = -room.__array_interface__["data"][0] % _ALIGNMENT
            buffer = room[start : start + layout.nbytes]
        buffer[:_ALIGNMENT] = layout.header
        return Block(self._views(buffer, layout), size, buffer)

    def _views(self, buffer: npt.NDArray[Any], layout: _Layout) -> list[npt.NDArray[Any]]:
        return [np.ndarray(shape, dtype, buffer, offset) for shape, dtype, offset in layout.fields]

    def unpack(self, buffer: npt.NDArray[Any], size: int, last: Block | None = None) -> Block:
        """Returns the block of `size` unrolls in `buffer`: views, no copies.

        Args:
          buffer: uint8, what `pack` returned.
          size: unrolls.
          last: an earlier result, which is returned again if it is of the same array and size.

        Raises:
          SpecError: the buffer has another struct, unroll length or size.
        """
        layout = self._layout(size)
        if buffer.nbytes != layout.nbytes or (
            int(buffer[:8].view(np.uint64)[0]) != layout.fingerprint
        ):
            raise SpecError(
                f"a block of {buffer.nbytes} bytes is not one of {size} unrolls of "
                f"{self.rows} steps ({layout.nbytes} bytes) with the columns "
                f"{', '.join(sorted(self.names))}: writer and reader differ in environment, "
                "agent, unroll length or unrolls per item"
            )
        if last is not None and last.buffer is buffer and last.size == size:
            return last
        return Block(self._views(buffer, layout), size, buffer)

    def put(self, store: Block, indices: npt.NDArray[Any] | slice, block: Block) -> None:
        """Copies the unrolls of `block` to `indices` (int64 `[block.size]`) of `store`."""
        for stored, column, time in zip(store.columns, block.columns, self.has_time):
            if time:
                stored[:, indices] = column
            else:
                stored[indices] = column

    def take(self, store: Block, indices: npt.NDArray[Any], out: Block | None = None) -> Block:
        """Returns copies of the unrolls at `indices` (int64 `[n]`) of `store`.

        Args:
          store: the unrolls.
          indices: indices of the unrolls to copy.
          out: the block that they are copied to; None: a new one.
        """
        block = self.allocate(len(indices)) if out is None else out
        for stored, column, time in zip(store.columns, block.columns, self.has_time):
            # The indices are in range; mode="raise" would gather into a copy first.
            stored.take(indices, axis=1 if time else 0, out=column, mode="clip")
        return block

    def versions(self, store: Block, indices: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
        """Returns the versions that chose the actions of unrolls: int32 `[T, n]`."""
        return store.columns[self._version][:-1, indices]

    def pack(self, block: Block) -> npt.NDArray[Any]:
        """Returns the block's buffer; copies only if its columns are not in one."""
        if block.buffer is None:
            block = self.join([block], copy=True)
        assert block.buffer is not None
        return block.buffer

    def pieces(self, block: Block) -> list[npt.NDArray[np.uint8]]:
        """Returns the result of `pack` as consecutive pieces; large pieces are not copied.

        Pieces that are not copies are views of the block, which must not change meanwhile.
        """
        if block.buffer is not None:
            return [block.buffer]
        layout = self._layout(block.size)
        pieces, at = [layout.header], _ALIGNMENT
        for i in sorted(range(len(self.names)), key=self.names.__getitem__):
            column, (_, _, offset) = block.columns[i], layout.fields[i]
            if offset > at:
                pieces.append(np.zeros(offset - at, np.uint8))
            if not column.flags.c_contiguous and column[0].nbytes < _PIECE_BYTES:
                column = np.ascontiguousarray(column)
            rows = [column] if column.flags.c_contiguous else map(np.ascontiguousarray, column)
            pieces += [row.reshape(-1).view(np.uint8) for row in rows if row.nbytes]
            at = offset + column.nbytes
        return [*pieces, np.zeros(layout.nbytes - at, np.uint8)] if layout.nbytes > at else pieces

    def join(self, blocks: Sequence[Block], copy: bool = False) -> Block:
        """Returns the unrolls of `blocks` as one block; copies a single one only if `copy`."""
        if len(blocks) == 1 and not copy:
            return blocks[0]
        joined = self.allocate(sum(block.size for block in blocks))
        for i, (column, time) in enumerate(zip(joined.columns, self.has_time)):
            np.concatenate(
                [block.columns[i] for block in blocks], axis=1 if time else 0, out=column
            )
        return joined

    def block(self, trajectory: Trajectory) -> Block:
        """Returns a trajectory `[T + 1, n, ...]` as a block, without its `probability`: no copies.

        Raises:
          SpecError: a leaf has another shape or dtype, or the structure is another.
        """
        nothing: Any = ()
        leaves, structure = jax.tree.flatten(trajectory._replace(probability=nothing))
        if structure != self._structure:
            raise SpecError(f"unrolls must be {self._structure}, got {structure}")
        leaves = [np.asarray(leaf) for leaf in leaves]
        first = leaves[self.has_time.index(False)]  # the stream ids, if nothing before them
        if first.shape == self.shape(self.has_time.index(False), 1)[1:]:
            raise SpecError(
                "unrolls must be several, [T + 1, n, ...], and this is one, [T + 1, ...]: take a "
                "slice, such as experience[-1:] instead of experience[-1]"
            )
        size = len(first) if first.ndim else 0
        for i, leaf in enumerate(leaves):
            shape, dtype = self.shape(i, size), np.dtype(self.leaves[i].dtype)
            if leaf.shape != shape or leaf.dtype != dtype:
                raise SpecError(
                    f"unrolls{self.names[i]}: expected {dtype}{list(shape)}, "
                    f"got {leaf.dtype}{list(leaf.shape)}"
                )
        return Block(leaves, size)

    def trajectory(self, block: Block, probability: npt.NDArray[Any]) -> Trajectory:
        """Returns the block as a `Trajectory`; `probability` is float32 `[B]`."""
        return self._sampled.unflatten([*block.columns, probability])

    def sample(
        self, block: Block, probability: npt.NDArray[Any], keys: npt.NDArray[Any], inserts: int
    ) -> Sample:
        """Returns a block as a `Sample`. Args: probability: float32 `[B]`. Others: see there."""
        trajectory = self.trajectory(block, probability)
        packed = (trajectory, block.buffer) if self.packs and block.buffer is not None else None
        return Sample(trajectory, keys, inserts, packed)

    def from_words(self, words: Array, probability: Array) -> Trajectory:
        """Returns the trajectory in a block's buffer, traced by JAX; only if this `packs`.

        Args:
          words: the buffer, uint32 `[bytes / 4]`.
          probability: float32 `[B]`.
        """
        columns = []
        for shape, dtype, offset in self._layout(len(probability)).fields:
            count, in_word = math.prod(shape), 4 // dtype.itemsize
            column = words[offset // 4 : offset // 4 + -(-count // in_word)]
            if in_word > 1:
                part = np.uint8 if in_word == 4 else np.uint16
                column = jax.lax.bitcast_convert_type(column, part).reshape(-1)[:count]
            if dtype == np.bool_:
                column = column != 0
            else:
                column = jax.lax.bitcast_convert_type(column, dtype)
            columns.append(column.reshape(shape))
        return self._sampled.unflatten([*columns, probability])


def as_slice(indices: npt.NDArray[Any]) -> slice | npt.NDArray[Any]:
    """Returns a slice if the indices are contiguous: `Columns.put` is faster with it."""
    first, count = int(indices[0]), len(indices)
    if int(indices[-1]) - first == count - 1 and (count < 3 or bool((np.diff(indices) == 1).all())):
        return slice(first, first + count)
    return indices
