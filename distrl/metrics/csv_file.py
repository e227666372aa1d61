"""Files of rows, such as `metrics.csv`, which one program after another appends to."""

import contextlib
import csv
import io
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from distrl.metrics.reported_errors import ReportedErrors
from distrl.runtime.files import replacing, sync

_BLOCK = 1 << 16  # bytes that are read at a time


class CsvFile:
    """A file of rows. Training does not depend on it: a full disk loses rows, and is reported once.

    Attributes:
      header: the names of the columns; empty in a new file.
    """

    def __init__(self, path: Path, printer: Callable[[str], None], max_bytes: int | None = None):
        """Args:
        path: the file, which is created or continued.
        printer: takes a line about what is wrong with the file.
        max_bytes: the size from which on rows are left out, which is reported once; None: no limit.
        """
        self._path = path
        self._printer = printer
        self._max_bytes = max_bytes
        self._is_full = False
        self._file: TextIO | None = None
        self.header: list[str] = []
        self._errors = ReportedErrors(printer, path, "rows will be missing")
        with self._reporting():
            self._open()

    def resume(self, column: str, value: int) -> None:
        """Drops the last rows in which a column is beyond a value: what they describe is lost."""

        def is_beyond(line: bytes) -> bool:
            fields = dict(zip(self.header, next(csv.reader([line.decode()]), []), strict=False))
            return column in fields and float(fields[column] or 0) > value

        with self._reporting():
            if self._file is not None and column in self.header:
                self._file.flush()
                cut_lines(self._path, is_beyond, keep=1)

    @property
    def is_full(self) -> bool:
        """Whether further rows are left out, as the file has its largest size."""
        return self._is_full

    def append(self, row: Mapping[str, Any]) -> None:
        """Writes a row; see `extend`."""
        line = io.StringIO()
        csv.writer(line).writerow(row.values())
        self.extend(list(row), line.getvalue())

    def extend(self, names: Sequence[str], lines: str) -> None:
        """Writes rows; the file gets columns for new names.

        Args:
          names: the names of the columns.
          lines: the rows, as the module `csv` writes them.
        """
        if self._is_full or not lines:
            return
        with self._reporting():
            if self._file is None:
                self._open()
            assert self._file is not None
            if not self.header:
                self.header = list(names)
                csv.writer(self._file).writerow(self.header)
            elif new := [name for name in names if name not in self.header]:
                self._widen(new)
            if self.header != list(names):  # otherwise the lines fit as they are
                rows = csv.DictReader(io.StringIO(lines, newline=""), names)
                csv.writer(self._file).writerows(map(row.get, self.header) for row in rows)
            else:
                self._file.write(lines)
            self._file.flush()
            self._errors.worked()
            if self._max_bytes is not None and self._file.tell() >= self._max_bytes:
                self._is_full = True
                self._printer(
                    f"distrl: {self._path} has {self._max_bytes / 1e6:.0f} MB: no further rows"
                )

    def close(self) -> None:
        """Closes the file."""
        with self._reporting():
            if self._file is not None:
                self._file.close()

    @contextlib.contextmanager
    def _reporting(self) -> Iterator[None]:
        """Reports the first of several errors; closes the file, which the next row opens again."""
        with self._errors.reporting():
            try:
                yield
            except OSError:
                file, self._file = self._file, None
                if file is not None:
                    with contextlib.suppress(OSError):  # closing retries what could not be written
                        file.close()
                raise

    def _widen(self, names: Sequence[str]) -> None:
        """Adds columns, which are empty in the rows so far."""
        assert self._file is not None
        self._file.flush()
        header = [*self.header, *names]
        text = io.StringIO()
        csv.writer(text).writerow(header)
        part = self._path.with_name(f".{self._path.name}.{os.getpid()}.new")
        with replacing(self._path, part):  # readers see the old file or the new one
            with open(self._path, "rb") as old, open(part, "wb") as file:
                file.write(text.getvalue().encode())
                next(old, b"")  # its header
                file.writelines(line.rstrip(b"\r\n") + b"," * len(names) + b"\r\n" for line in old)
            sync(part)
        self._file.close()
        self._file = open(self._path, "a", newline="")  # noqa: SIM115
        self.header = header

    def _open(self) -> None:
        with open(self._path, "a+b") as binary:
            last = next(_backwards(binary, 0), b"\n")
            if not last.endswith(b"\n"):  # the process died in the middle of a row
                binary.truncate(binary.seek(0, os.SEEK_END) - len(last))
            binary.seek(0)
            line = binary.readline()
        try:
            first = line.decode()
            if "\0" in first:
                raise csv.Error("line contains NUL")  # since Python 3.11 the reader accepts it
            self.header = next(csv.reader(first.splitlines()), [])
        except (UnicodeDecodeError, csv.Error):
            damaged = self._path.with_name(f"{self._path.name}.damaged")
            os.replace(self._path, damaged)
            self._printer(f"distrl: {self._path} is damaged: it is now {damaged.name}")
            self.header = []
        self._file = open(self._path, "a", newline="")  # noqa: SIM115


def cut_lines(path: Path, is_beyond: Callable[[bytes], bool], keep: int = 0) -> None:
    """Cuts a file off after the last line that is not beyond what is to stay.

    Args:
      path: the file. Other handles that append to it continue at its new end.
      is_beyond: returns whether a line is beyond it. A line that it cannot read (ValueError,
        LookupError), or that a kill has cut off, goes too.
      keep: lines at the beginning that stay.
    """
    with open(path, "rb") as file:
        kept = sum(len(file.readline()) for _ in range(keep))
        end = file.seek(0, os.SEEK_END)
        for line in _backwards(file, kept):
            with contextlib.suppress(ValueError, LookupError):
                if line.endswith(b"\n") and not is_beyond(line):
                    break
            end -= len(line)
    os.truncate(path, end)


def _backwards(file: BinaryIO, start: int) -> Iterator[bytes]:
    """Yields the lines of a file from the last to the one that begins at `start`."""
    begin, rest = file.seek(0, os.SEEK_END), b""
    while begin > start:
        end, begin = begin, max(start, begin - _BLOCK)
        file.seek(begin)
        lines = io.BytesIO(file.read(end - begin) + rest).readlines()
        rest = lines.pop(0) if begin > start else b""  # its beginning may be before the block
        yield from reversed(lines)
