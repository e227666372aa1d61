"""Publishes the newest version of something small to all processes of a machine."""

import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from distrl.errors import ConfigError
from distrl.shared_memory import segment
from distrl.shared_memory.futex import fence
from distrl.shared_memory.process import Process

_WRITES, _CLOSED, _VERSIONS = range(3)  # int64; of two versions, one is current
_HEADER = 64  # bytes


class Board:
    """A version that its one writer replaces, and that any readers copy; none of them waits.

    Attributes:
      path: the path of its file.
    """

    def __init__(self, path: str, memory: npt.NDArray[Any]):
        """Args:
        path: the path of its file.
        memory: the file's memory, uint8.
        """
        self.path = path
        self._header = memory[:_HEADER].view(np.int64).data
        self._halves = np.split(memory[_HEADER:], 2)

    @classmethod
    def create(cls, name: str, owner: Process, nbytes: int) -> "Board | None":
        """Makes a board, and closes those that an earlier life of its writer has left.

        Args:
          name: unique to the writer among all programs.
          owner: the file is in use as long as this process lives.
          nbytes: size of a version.

        Returns:
          The board; None if there is no memory for it.
        """
        for file in segment.existing():
            if file.name == name and file.is_finished(segment.BOARD):
                cls(str(file.path), file.map()).close()
        try:
            file = segment.create(name, _HEADER + 2 * nbytes, owner, segment.BOARD)
        except (ConfigError, OSError):
            return None
        memory = file.map()
        return cls(str(segment.publish(file).path), memory)

    @classmethod
    def open(cls, path: str) -> "Board":
        """Opens a board to read it. Raises FileNotFoundError if it was removed."""
        with open(path, "rb") as file:
            memory = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        return cls(path, np.frombuffer(memory, np.uint8))

    @property
    def is_closed(self) -> bool:
        """Whether nothing will be written any more."""
        return bool(self._header[_CLOSED])

    @property
    def version(self) -> int:
        """The number of the version on the board."""
        return self._header[_VERSIONS + self._header[_WRITES] % 2]

    def write(self, version: int, fill: Callable[[npt.NDArray[Any]], None]) -> None:
        """Replaces the version.

        Args:
          version: its number.
          fill: writes it into an array uint8 `[nbytes]`.
        """
        writes = self._header[_WRITES] + 1
        fill(self._halves[writes % 2])
        self._header[_VERSIONS + writes % 2] = version
        fence()
        self._header[_WRITES] = writes

    def read(self, other_than: int) -> tuple[int, bytes] | None:
        """Returns version and bytes; None if it is the given version."""
        header = self._header
        while True:  # repeated only if another version has been written meanwhile
            writes = header[_WRITES]
            fence()
            version = header[_VERSIONS + writes % 2]
            data = b"" if version == other_than else self._halves[writes % 2].tobytes()
            fence()
            if header[_WRITES] == writes:
                return (version, data) if version != other_than else None

    def close(self) -> None:
        """Marks the board as closed, for its readers, and removes the file."""
        self._header[_CLOSED] = 1
        Path(self.path).unlink(missing_ok=True)
