"""Files of whole records, such as `metrics.jsonl`; a full disk is reported once."""

import os
from collections.abc import Callable
from pathlib import Path

from distrl.metrics.reported_errors import ReportedErrors


class AppendedFile:
    """A file that records are appended to, each in full or not at all. It is closed in between.

    Training does not depend on it: an OSError loses records, and the first is reported.

    Attributes:
      path: the file's path.
      errors: reports errors; also for other steps of writing the file.
    """

    def __init__(self, path: Path, printer: Callable[[str], None], records: str = "rows"):
        """Args:
        path: the file, which is created or continued.
        printer: takes a line about what is wrong with the file.
        records: what the records are called in that line.
        """
        self.path = path
        self.errors = ReportedErrors(printer, path, f"{records} will be missing")
        self._end: int | None = None  # the end of the whole records; a part of one may follow

    def append(self, record: bytes) -> bool:
        """Writes a record; returns whether it is in the file."""
        with self.errors.reporting():
            self._cut()
            self._end = self._size()
            with open(self.path, "ab") as file:
                file.write(record)
            self._end = None
            self.errors.worked()
            return True
        return False

    def close(self) -> None:
        """Removes a record of which only a part could be written."""
        with self.errors.reporting():
            self._cut()

    def _cut(self) -> None:
        if self._end is not None and self._size() > self._end:
            os.truncate(self.path, self._end)
        self._end = None

    def _size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0
