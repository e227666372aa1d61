"""Nests of arrays as bytes of a layout that both ends know: small messages without a schema.

A message between two nodes of one program has the same structure each time, so sending names,
shapes and dtypes with it is waste: one `bytes` argument costs a remote call less than half of
what a list of arrays does.
"""

import jax
import numpy as np

from distrl import specs
from distrl.errors import SpecError
from distrl.types import Nest


class Codec:
    """Packs nests whose leaves are `[n, *shape]` for shapes and dtypes known beforehand."""

    def __init__(self, struct: Nest, where: str):
        """Args:
        struct: nest of specs, without the leading axis.
        where: what is packed, for messages.
        """
        leaves, self._treedef = jax.tree.flatten(specs.struct(struct))
        # Wide items first, so that every array starts at a multiple of its item's size.
        self._order = sorted(range(len(leaves)), key=lambda i: -np.dtype(leaves[i].dtype).itemsize)
        self._leaves = [
            (tuple(leaf.shape), np.dtype(leaf.dtype), int(np.prod(leaf.shape))) for leaf in leaves
        ]
        self._where = where
        self.row_bytes = sum(dtype.itemsize * size for _, dtype, size in self._leaves)

    def pack(self, nest: Nest) -> bytes:
        """`nest` as bytes; dtypes are cast to the spec's, structure and sizes are not checked."""
        leaves = self._treedef.flatten_up_to(nest)
        return b"".join([np.asarray(leaves[i], self._leaves[i][1]).tobytes() for i in self._order])

    def unpack(self, data: bytes, n: int, offset: int = 0) -> Nest:
        """The nest in `data` from `offset` on, as read-only arrays `[n, *shape]` over its memory.

        Raises:
          SpecError: where the length is not that of n rows.
        """
        if len(data) - offset != n * self.row_bytes:
            raise SpecError(
                f"{self._where}: expected {n} rows of {self.row_bytes} bytes, "
                f"got {len(data) - offset} bytes"
            )
        leaves: list = [None] * len(self._leaves)
        for i in self._order:
            shape, dtype, size = self._leaves[i]
            array = np.frombuffer(data, dtype, n * size, offset)
            leaves[i] = array.reshape(n, *shape) if shape else array
            offset += array.nbytes
        return self._treedef.unflatten(leaves)
