"""Files of whole records, such as `metrics.jsonl`: a full disk costs records, and is told."""

import os
from collections.abc import Callable
from pathlib import Path

from distrl.metrics.told_once import ToldOnce


class AppendedFile:
    """A file that records are appended to, each in full or not at all. It is closed in between.

    Training does not depend on it: an error of the system costs records, and the first is told.

    Attributes:
      path: of the file.
      told: for what else belongs to writing it.
    """

    def __init__(self, path: Path, printer: Callable[[str], None], records: str = "rows"):
        """Args:
        path: the file, which is created or continued.
        printer: takes a line about what is wrong with the file.
        records: what they are called in that line.
        """
        self.path = path
        self.told = ToldOnce(printer, path, f"{records} will be missing")
        self._end: int | None = None  # of the whole records, where a part of one may follow

    def append(self, record: bytes) -> bool:
        """Writes a record; returns whether it is in the file."""
        with self.told():
            self._cut()
            self._end = self._size()
            with open(self.path, "ab") as file:
                file.write(record)
            self._end = None
            self.told.worked()
            return True
        return False

    def close(self) -> None:
        """Takes back a record of which only a part could be written."""
        with self.told():
            self._cut()

    def _cut(self) -> None:
        if self._end is not None and self._size() > self._end:
            os.truncate(self.path, self._end)
        self._end = None

    def _size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0
