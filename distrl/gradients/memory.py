"""Anonymous memory that processes of one machine share: nothing is left when they end."""

import mmap
import os
import uuid
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from distrl.runtime.memory_file import memory_file

_MARK = 64  # bytes at the start, which say whose memory it is


class MemoryAddress(NamedTuple):
    """What another process of the machine needs to map the memory."""

    pid: int
    descriptor: int
    mark: str


class SharedMemory:
    """A block of memory that others map by its address.

    Attributes:
      address: see `MemoryAddress`.
      block: uint8, the memory.
    """

    def __init__(self, nbytes: int):
        """Args: nbytes: size. Raises OSError if there is not enough memory."""
        descriptor = memory_file("distrl-gradients")
        os.posix_fallocate(descriptor, 0, _MARK + nbytes)  # running out later would be a SIGBUS
        mark = uuid.uuid4().hex
        mapped = np.frombuffer(mmap.mmap(descriptor, _MARK + nbytes), np.uint8)
        mapped[: len(mark)] = np.frombuffer(mark.encode(), np.uint8)
        self._descriptor = descriptor
        self.address = MemoryAddress(os.getpid(), descriptor, mark)
        self.block = mapped[_MARK:]

    def close(self) -> None:
        """Allows no new mappings; the memory is freed when all mappings are gone."""
        os.close(self._descriptor)


def map_memory(address: MemoryAddress) -> npt.NDArray[Any] | None:
    """Returns the block; None if it is on another machine, or its process has ended."""
    try:
        with open(f"/proc/{address.pid}/fd/{address.descriptor}", "r+b") as file:
            mapped = np.frombuffer(mmap.mmap(file.fileno(), 0), np.uint8)
    except (OSError, ValueError):  # no such process here, or a file that cannot be mapped
        return None
    mark = np.frombuffer(address.mark.encode(), np.uint8)
    if mapped.size < _MARK or not np.array_equal(mapped[: mark.size], mark):
        return None
    return mapped[_MARK:]
