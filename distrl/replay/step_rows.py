"""Unfinished windows of streams in lockstep whose steps are small: a step is one row of bytes."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from distrl.replay.columns import Block, Columns

_MOST_BYTES = 4096  # bytes of a step; with more, a second copy costs more than writing columns
_LEAST_ROWS = 8  # rows of a window; with fewer, the copy costs more than is saved


class StepRows:
    """Windows of few bytes, into which a step is written at once and not column by column.

    Attributes:
      block: the windows; its columns with a time axis are views of the rows.
    """

    def __init__(self, columns: Columns, size: int):
        """Args: columns: the columns of an unroll. size: number of streams."""
        self._size = size
        self._nbytes = _step_bytes(columns, size)
        self._memory = bytearray(columns.rows * self._nbytes)
        self._version: int | None = None  # the last version
        self._version_bytes = b""
        views: list[npt.NDArray[Any]] = []
        offset = 0
        for i, (leaf, time) in enumerate(zip(columns.leaves, columns.has_time)):
            shape, dtype = columns.shape(i, size), np.dtype(leaf.dtype)
            if not time:
                views.append(np.empty(shape, dtype))
                continue
            strides = (self._nbytes, *np.empty(shape[1:], dtype).strides)
            views.append(np.ndarray(shape, dtype, self._memory, offset, strides))
            offset += math.prod(shape[1:]) * dtype.itemsize
        self.block = Block(views, size)

    def write(self, row: int, values: Sequence[Any], version: int | npt.NDArray[Any]) -> None:
        """Writes a step. Args: values: arrays for all columns but the version, of their dtypes.

        The order of the columns is that of the rows' bytes, with the version last.
        """
        if version.__class__ is not int:
            of_all = np.broadcast_to(np.asarray(version, np.int32), self._size).tobytes()
        elif version == self._version:
            of_all = self._version_bytes
        else:
            self._version = version
            of_all = self._version_bytes = np.full(self._size, version, np.int32).tobytes()
        try:
            step = b"".join([*values, of_all])
        except TypeError:  # not contiguous, or of a dtype that has no buffers
            step = b"".join([*(np.asarray(value).tobytes() for value in values), of_all])
        start = row * self._nbytes
        self._memory[start : start + self._nbytes] = step

    def move(self, period: int) -> None:
        """Moves all rows from `period` on to the beginning, where the next windows begin."""
        kept = self._memory[period * self._nbytes :]
        self._memory[: len(kept)] = kept

    def copy(self, columns: Columns) -> Block:
        """Returns a copy of the windows. Args: columns: as given to `__init__`."""
        block = columns.allocate(self._size)
        for column, view in zip(block.columns, self.block.columns):
            column[...] = view
        return block


def are_small(columns: Columns, size: int) -> bool:
    """Returns whether `StepRows` are faster than columns. For arguments see there."""
    return columns.rows >= _LEAST_ROWS and _step_bytes(columns, size) <= _MOST_BYTES


def _step_bytes(columns: Columns, size: int) -> int:
    return sum(
        math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize * size
        for leaf, time in zip(columns.leaves, columns.has_time)
        if time
    )
