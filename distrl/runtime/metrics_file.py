"""`metrics.csv`: rows that are appended, by one program after the other."""

import contextlib
import csv
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO


class MetricsFile:
    """The file of metrics. Training does not depend on it: a full disk costs rows, and is told.

    Args:
      path: the file, which is created or continued.
      printer: takes a line about what is wrong with the file.

    Attributes:
      header: the names of the columns; empty in a new file.
    """

    def __init__(self, path: Path, printer: Callable[[str], None]):
        self._path = path
        self._printer = printer
        self._file: TextIO | None = None
        self.header: list[str] = []
        self._broken = False
        with self._told():
            self._open()

    def append(self, row: Mapping[str, Any]) -> None:
        """Writes a row, under the names of the file's first one."""
        with self._told():
            if self._file is None:
                self._open()
            assert self._file is not None
            writer = csv.writer(self._file)
            if not self.header:
                self.header = list(row)
                writer.writerow(self.header)
            writer.writerow([row.get(name) for name in self.header])
            self._file.flush()
            self._broken = False

    def close(self) -> None:
        """Closes the file."""
        with self._told():
            if self._file is not None:
                self._file.close()

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Tells the first of several errors, and closes the file: the next row opens it again."""
        try:
            yield
        except OSError as error:
            if not self._broken:
                self._printer(f"distrl: {self._path}: {error.strerror}: rows will be missing")
            self._broken = True
            file, self._file = self._file, None
            if file is not None:
                with contextlib.suppress(OSError):  # what it could not write
                    file.close()

    def _open(self) -> None:
        with open(self._path, "a+b") as binary:
            binary.seek(0)
            content = binary.read()
            if not content.endswith(b"\n"):  # the process died in the middle of a row
                content = content[: content.rfind(b"\n") + 1]
                binary.truncate(len(content))
        try:
            first = content[: content.find(b"\n")].decode()
            self.header = next(csv.reader(first.splitlines()), [])
        except (UnicodeDecodeError, csv.Error):
            damaged = self._path.with_name(f"{self._path.name}.damaged")
            os.replace(self._path, damaged)
            self._printer(f"distrl: {self._path} is damaged: it is now {damaged.name}")
            self.header = []
        self._file = open(self._path, "a", newline="")  # noqa: SIM115
