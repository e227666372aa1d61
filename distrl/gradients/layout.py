"""Lays out arrays in a block of memory, 64-byte aligned, so that XLA takes them without a copy.

Both ends know shapes and dtypes, as in `distrl.runtime.codec`, whose rows, one per stream, can be
split and joined.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

_ALIGNMENT = 64  # bytes


class MessageLayout:
    """Where each of several arrays is in a block of bytes.

    Attributes:
      nbytes: size of the block.
    """

    def __init__(self, structs: Sequence[Any]):
        """Args: structs: the arrays' structs, with `shape` and `dtype`."""
        self._kinds = [(tuple(s.shape), np.dtype(s.dtype)) for s in structs]
        self._offsets = []
        end = 0
        for shape, dtype in self._kinds:
            self._offsets.append(end)
            size = math.prod(shape) * dtype.itemsize
            end += -(-size // _ALIGNMENT) * _ALIGNMENT
        self.nbytes = end

    def views(self, block: npt.NDArray[Any], start: int = 0) -> list[npt.NDArray[Any]]:
        """Returns the arrays in a block, uint8, from byte `start` on, as views of its memory."""
        return [
            block[start + offset : start + offset + math.prod(shape) * dtype.itemsize]
            .view(dtype)
            .reshape(shape)
            for offset, (shape, dtype) in zip(self._offsets, self._kinds, strict=True)
        ]

    def write(self, arrays: Sequence[Any], block: npt.NDArray[Any], start: int = 0) -> None:
        """Copies arrays into a block, in their dtypes. Raises ValueError for other shapes."""
        for view, array in zip(self.views(block, start), arrays, strict=True):
            if view.shape != np.shape(array):
                raise ValueError(f"expected shape {view.shape}, got {np.shape(array)}")
            view[...] = array
