"""Chunks of a frame's bytes: as they are, or compressed (LZ4) where that makes them shorter.

Frames of a game shrink to a hundredth in the time that it takes to copy them twice. Numbers that do
not shrink are tried once in a while.
"""

import struct
from collections.abc import Iterable, Iterator

import cramjam
import numpy as np
import numpy.typing as npt

from distrl.runtime.messages import MessageError

CHUNK_BYTES = 1 << 19  # at most; fits into a core's cache
FIRST_BYTES = 1 << 17  # of a frame's first chunk: the other end wakes while the next is compressed
AT_ONCE_BYTES = 4 * CHUNK_BYTES  # compressed before they are sent: not all, so that both ends work
HEAD = struct.Struct("<II")  # before each chunk: its bytes, and its bytes as they are sent
_LEAST = 1 << 12  # bytes of a chunk that is worth a try
_WORTH = 0.875  # of its bytes that a compressed chunk has at most
_MOST_SKIPPED = 63  # chunks that are not tried after one that was not worth it

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
        self._used = 0  # bytes of it
        self._skipped, self._left = 0, 0  # chunks after a failure; of these still to come

    def compressed(self, chunk: Bytes) -> Bytes | None:
        """Returns what a chunk, uint8 `[n]`, is compressed to; None: it is sent as it is.

        Only the chunks of `AT_ONCE_BYTES` between two calls of `clear` may be compressed.
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
        """Has what was compressed be overwritten."""
        self._used = 0


def decompress(data: memoryview, chunk: Bytes) -> None:
    """Fills a chunk, uint8 `[n]`.

    Args:
      data: what it was compressed to.
      chunk: all of it is written.

    Raises:
      MessageError: the bytes are no compressed chunk of this size.
    """
    try:
        nbytes = cramjam.lz4.decompress_block_into(data, chunk, output_len=chunk.nbytes)
    except cramjam.DecompressionError as error:
        raise MessageError(f"a chunk cannot be decompressed: {error}") from None
    if nbytes != chunk.nbytes:
        raise MessageError(f"a chunk of {chunk.nbytes} bytes has {nbytes}")
