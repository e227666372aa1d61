"""Chunks of a frame's bytes: as they are, or compressed (LZ4) where that makes them shorter.

A game's frames shrink to a hundredth in the time that it takes to copy them twice. Data that does
not shrink is tried again only once in a while.
"""

import struct
from collections.abc import Iterable, Iterator

import cramjam
import numpy as np
import numpy.typing as npt

from distrl.runtime.messages import MessageError

CHUNK_BYTES = 1 << 19  # at most; fits into a core's cache
FIRST_BYTES = 1 << 17  # the first chunk's: the other end wakes while the next one is compressed
AT_ONCE_BYTES = 4 * CHUNK_BYTES  # compressed before they are sent: not all, so that both ends work
HEAD = struct.Struct("<II")  # before each chunk: its bytes, and its bytes as they are sent
_LEAST = 1 << 12  # bytes; smaller chunks are not worth a try
_WORTH = 0.875  # largest size of a compressed chunk, as a share of its bytes
_MOST_SKIPPED = 63  # most chunks left untried after one that did not shrink

Bytes = npt.NDArray[np.uint8]


def chunks(data: Iterable[Bytes]) -> Iterator[Bytes]:
    """Yields the chunks of a frame's bytes. Args: data: pieces, uint8 `[n]` each."""
    most = FIRST_BYTES
    for piece in data:
        while piece.nbytes:
            yield piece[:most]
            piece, most = piece[most:], CHUNK_BYTES


class Compressor:
    """Compresses the chunks of one sender."""

    def __init__(self) -> None:
        self._room = np.empty(0, np.uint8)
        self._used = 0  # bytes of `_room` in use
        self._skipped, self._left = 0, 0  # chunks to skip after a failure; those still to skip

    def compressed(self, chunk: Bytes) -> Bytes | None:
        """Returns a chunk, uint8 `[n]`, in compressed form; None: send it as it is.

        Between two calls of `clear`, compress chunks of at most `AT_ONCE_BYTES` in total.
        """
        if chunk.nbytes < _LEAST:
            return None
        if self._left > 0:
            self._left -= 1
            return None
        if not self._room.nbytes:
            bound = cramjam.lz4.compress_block_bound(bytes(CHUNK_BYTES))
            self._room = np.empty(AT_ONCE_BYTES // CHUNK_BYTES * bound, np.uint8)
        room = self._room[self._used :]
        nbytes = cramjam.lz4.compress_block_into(chunk, room, store_size=False)
        if nbytes > _WORTH * chunk.nbytes:
            self._skipped = self._left = min(2 * self._skipped + 1, _MOST_SKIPPED)
            return None
        self._skipped = 0
        self._used += nbytes
        return room[:nbytes]

    def clear(self) -> None:
        """Allows the buffer of compressed bytes to be reused."""
        self._used = 0


def decompress(data: memoryview, chunk: Bytes) -> None:
    """Fills a chunk, uint8 `[n]`.

    Args:
      data: the chunk in compressed form.
      chunk: the array to fill, all of it.

    Raises:
      MessageError: the data is not a compressed chunk of this size.
    """
    try:
        nbytes = cramjam.lz4.decompress_block_into(data, chunk, output_len=chunk.nbytes)
    except cramjam.DecompressionError as error:
        raise MessageError(f"a chunk cannot be decompressed: {error}") from None
    if nbytes != chunk.nbytes:
        raise MessageError(f"a chunk of {chunk.nbytes} bytes has {nbytes}")
