"""Publishes versions of something large to a machine's processes, each in a file of its own.

A writer makes a file, fills it, and names it; the file never changes again, and all processes map
the same pages. The writer removes the files of old versions: a process that has mapped one keeps
it, and one that comes too late does not find it, and asks for the newest.
"""

import functools
import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from distrl.errors import ConfigError
from distrl.shared_memory import segment
from distrl.shared_memory.process import Process, boot_id


@functools.cache
def shared_memory_domain() -> str:
    """Returns a name that is equal in processes that can map the same files."""
    return f"{boot_id()} {segment.FOLDER.stat().st_dev} {os.getuid()}"


class PublishedVersions:
    """The files of one writer."""

    def __init__(self, name: str, owner: Process):
        """Removes what an earlier life of the writer has left.

        Args:
          name: unique to the writer among all programs.
          owner: the files are in use as long as this process lives.
        """
        self._name, self._owner = name, owner
        self._paths: dict[int, Path] = {}
        for file in segment.existing():
            if file.name.startswith(f"{name}."):
                file.path.unlink(missing_ok=True)

    def publish(
        self, version: int, nbytes: int, write: Callable[[npt.NDArray[Any]], None]
    ) -> str | None:
        """Makes the file of a version.

        Args:
          version: its number.
          nbytes: size.
          write: fills it, an array uint8 `[nbytes]`.

        Returns:
          The file's path; None if there is no memory for it.
        """
        try:
            file = segment.create(f"{self._name}.{version}", nbytes, self._owner, segment.VERSION)
        except (ConfigError, OSError):
            return None
        write(file.map())
        path = self._paths[version] = segment.publish(file).path
        return str(path)

    def keep(self, versions: set[int]) -> None:
        """Removes the files of all other versions."""
        for version in self._paths.keys() - versions:
            self._paths.pop(version).unlink(missing_ok=True)

    def close(self) -> None:
        """Removes all files."""
        self.keep(set())


def read_version(path: str) -> npt.NDArray[Any]:
    """Maps a published file: uint8, read-only, unmapped when the last view of it is deleted.

    Raises:
      FileNotFoundError: it was removed, because there is a newer version.
    """
    with open(path, "rb") as file:
        return np.frombuffer(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ), np.uint8)
