"""Packs nests of arrays into rows of bytes, one per stream, which can be split and joined.

Messages between two nodes have the same structure each time, so names, shapes and dtypes need not
be sent: a single `bytes` argument costs a remote call less than half of a list of arrays. As a row
holds one stream's data, requests are joined and split as bytes, and XLA itself can unpack and pack
rows. For whole arrays that XLA takes without a copy, see `distrl.gradients.layout`.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from distrl import specs
from distrl.errors import SpecError
from distrl.types import Array, Nest

_MAX_FIELDS_BYTES = int(np.iinfo(np.intc).max)  # largest structured dtype of NumPy


class Codec:
    """Packs nests whose leaves are `[n, *shape]`, with fixed shapes and dtypes.

    Attributes:
      row_bytes: size of a row.
      offsets: of the leaves in a row, in bytes.
      dtypes: of the leaves.
    """

    def __init__(self, struct: Nest, where: str):
        """Args:
        struct: nest of specs, without the leading axis.
        where: what is packed, for error messages.
        """
        leaves, self._treedef = jax.tree.flatten(specs.struct(struct))
        self._shapes = [tuple(leaf.shape) for leaf in leaves]
        self.dtypes = [np.dtype(leaf.dtype) for leaf in leaves]
        sizes = [
            dtype.itemsize * int(np.prod(shape))
            for dtype, shape in zip(self.dtypes, self._shapes, strict=True)
        ]
        widest = max([dtype.itemsize for dtype in self.dtypes], default=1)
        # Wide items first, so that each item is aligned to its size.
        self._order = sorted(range(len(leaves)), key=lambda i: -self.dtypes[i].itemsize)
        self.offsets = [0] * len(leaves)
        end = 0
        for i in self._order:
            self.offsets[i] = end
            end += sizes[i]
        self.row_bytes = -(-end // widest) * widest
        self._names = [f"f{i}" for i in range(len(leaves))]
        self._rows: np.dtype[Any] | None = None  # None: too large rows, such as parameters of GBs
        if self.row_bytes <= _MAX_FIELDS_BYTES:
            self._rows = np.dtype(
                {
                    "names": self._names,
                    "formats": list(zip(self.dtypes, self._shapes, strict=True)),
                    "offsets": self.offsets,
                    "itemsize": self.row_bytes,
                }
            )
        self._where = where

    def pack(self, nest: Nest, n: int) -> bytes:
        """Returns `nest` as n rows. Casts values to the spec's dtypes; shapes must match."""
        if self._rows is None:
            memory = np.empty(n * self.row_bytes, np.uint8)
            self.put(nest, self._large_columns(memory, n))
            return memory.tobytes()
        rows = np.empty(n, self._rows)
        self.put(nest, [rows[name] for name in self._names])
        return rows.tobytes()

    def put(self, nest: Nest, columns: Sequence[npt.NDArray[Any]]) -> None:
        """Writes `nest` into columns of rows. Casts as `pack` does."""
        for column, leaf in zip(columns, self._treedef.flatten_up_to(nest), strict=True):
            column[...] = leaf

    def columns(self, data: npt.NDArray[Any], n: int) -> list[npt.NDArray[Any]]:
        """Returns the leaves of n rows, as views `[n, *shape]` of memory, uint8 `[bytes]`."""
        if self._rows is None:
            return self._large_columns(data, n)
        rows = np.frombuffer(data, self._rows, n)
        return [rows[name] for name in self._names]

    def _large_columns(
        self, data: bytes | npt.NDArray[Any], n: int, offset: int = 0
    ) -> list[npt.NDArray[Any]]:
        """Like `columns`, but leaf by leaf: slower than the fields of a structured dtype."""
        rows = np.frombuffer(data, np.uint8, n * self.row_bytes, offset).reshape(n, self.row_bytes)
        columns = []
        for dtype, shape, start in zip(self.dtypes, self._shapes, self.offsets, strict=True):
            end = start + dtype.itemsize * math.prod(shape)
            columns.append(rows[:, start:end].view(dtype).reshape(n, *shape))
        return columns

    def nest(self, columns: Sequence[npt.NDArray[Any]]) -> Nest:
        """Returns the nest of these leaves, in the order of `columns`."""
        return self._treedef.unflatten(columns)

    def unpack(self, data: bytes | npt.NDArray[Any], n: int, offset: int = 0) -> Nest:
        """Returns the nest in `data` from `offset` on, as views `[n, *shape]` of its memory.

        Args:
          data: rows; if an array, one-dimensional and uint8.
          n: number of rows.
          offset: bytes to skip.

        Raises:
          SpecError: there are not n rows.
        """
        self.check(len(data) - offset, n)
        if self._rows is None:
            return self._treedef.unflatten(self._large_columns(data, n, offset))
        rows = np.frombuffer(data, self._rows, n, offset)
        return self._treedef.unflatten([rows[name] for name in self._names])

    def check(self, size: int, n: int) -> None:
        """Raises SpecError unless `size` bytes are n rows."""
        if size != n * self.row_bytes:
            raise SpecError(
                f"{self._where}: expected {n} rows of {self.row_bytes} bytes, got {size} bytes"
            )

    def from_rows(self, rows: Array) -> Nest:
        """Returns the nest in rows uint8 `[n, row_bytes]`; traced by JAX."""
        leaves, n = [], rows.shape[0]
        for dtype, shape, start in zip(self.dtypes, self._shapes, self.offsets, strict=True):
            count = int(np.prod(shape))
            leaf = rows[:, start : start + count * dtype.itemsize]
            if dtype == np.bool_:
                leaf = leaf != 0
            else:
                if dtype.itemsize > 1:
                    leaf = leaf.reshape(n, count, dtype.itemsize)
                leaf = jax.lax.bitcast_convert_type(leaf, dtype)
            leaves.append(leaf.reshape(n, *shape))
        return self._treedef.unflatten(leaves)

    def to_rows(self, nest: Nest) -> Array:
        """Returns `nest` `[n, ...]` as rows uint8 `[n, row_bytes]`; traced by JAX."""
        leaves = self._treedef.flatten_up_to(nest)
        n = leaves[0].shape[0]
        columns, end = [], 0
        for i in self._order:
            leaf = jnp.asarray(leaves[i]).astype(self.dtypes[i])
            if leaf.dtype == np.bool_:
                leaf = leaf.astype(np.uint8)
            size = self.dtypes[i].itemsize * int(np.prod(self._shapes[i]))
            columns.append(jax.lax.bitcast_convert_type(leaf, np.uint8).reshape(n, size))
            end += size
        columns.append(jnp.zeros((n, self.row_bytes - end), np.uint8))
        return jnp.concatenate(columns, axis=1)
