"""The rows of `metrics.csv`, of which a run of weeks has a million."""

import contextlib
import csv
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TextIO

from distrl.errors import ConfigError

Row = dict[str, float]
_TAIL = 1 << 16  # bytes


@contextlib.contextmanager
def reporting_damage(path: Path) -> Iterator[None]:
    """Raises ConfigError, with the file's name, for a text that is no number or no table."""
    try:
        yield
    except ConfigError:  # it names the file already
        raise
    except (ValueError, csv.Error) as error:
        raise ConfigError(f"{path} is damaged: {error}") from error


def read_rows(path: Path) -> Iterator[Row]:
    """Yields the rows of a file, none if it does not exist; what is not known is NaN.

    Raises:
      ConfigError: the file is damaged; so do the functions below.
    """
    if path.exists():
        with _open(path) as file, reporting_damage(path):
            yield from _rows(file)


def last_row(path: Path) -> Row | None:
    """Returns the newest whole row, without reading the others; None: there is none."""
    if not path.exists():
        return None
    with open(path, "rb") as file, reporting_damage(path):
        header = file.readline()
        first, size, tail = file.tell(), os.fstat(file.fileno()).st_size, _TAIL
        while True:
            begin = max(first, size - tail)
            file.seek(begin)
            lines = file.read(size - begin).splitlines()
            if begin > first:
                del lines[:1]  # perhaps the end of a row
            if rows := list(_rows(line.decode(errors="replace") for line in [header, *lines])):
                return rows[-1]
            if begin == first:
                return None
            tail *= 2


def texts(path: Path, names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yields some columns of each row of a curve, as text: "" is not known, or no such column."""
    if not path.exists():
        return
    with _curve(path) as (header, cells):
        columns = [header.index(name) if name in header else None for name in names]
        for row in cells:
            yield tuple("" if column is None else row[column] for column in columns)


def thinned_rows(path: Path, most: int) -> list[Row]:
    """Returns rows of a curve at equal distances, and the last one.

    Args:
      path: the file.
      most: number of rows up to which all of them are returned; of a longer file, at least half
        this number, and at most one more.
    """
    if not path.exists():
        return []
    kept: list[list[str]] = []
    last: list[str] = []
    step, count = 1, 0
    with _curve(path) as (header, cells):
        for row in cells:
            if count % step == 0:
                if len(kept) == most:
                    del kept[1::2]
                    step *= 2
                if count % step == 0:
                    kept.append(row)
            last = row
            count += 1
        if kept and kept[-1] is not last:
            kept.append(last)
        return [_row(header, row) for row in kept]


@contextlib.contextmanager
def _curve(path: Path) -> Iterator[tuple[list[str], Iterator[list[str]]]]:
    """Gives the header, and the whole rows since the run last started from the beginning.

    Where the environment steps fall, a program has started without a checkpoint; one that resumes
    from a checkpoint drops the rows beyond it.
    """
    with _open(path) as file, reporting_damage(path):
        cells = _cells(file)
        header = next(cells, [])
        names = [name for name in ("env_steps_acted", "env_steps") if name in header]
        begin, before = 0, float("-inf")
        for number, row in enumerate(cells if names else ()):
            steps = float(row[header.index(names[0])] or "nan")
            if steps < before:
                begin = number
            before = steps
        file.seek(0)
        cells = _cells(file)
        yield next(cells, []), itertools.islice(cells, begin, None)


def _open(path: Path) -> TextIO:
    return open(path, newline="", errors="replace")


def _rows(lines: Iterable[str]) -> Iterator[Row]:
    cells = _cells(lines)
    header = next(cells, [])
    for row in cells:
        yield _row(header, row)


def _cells(lines: Iterable[str]) -> Iterator[list[str]]:
    """Yields the header, then the whole rows: the last one may be being written.

    Zeros, as a file system leaves them after a crash, do not count.
    """
    reader = csv.reader(line.replace("\0", "") for line in lines)
    header = next(reader, [])
    yield header
    for row in reader:
        if row and len(row) >= len(header):
            yield row


def _row(header: Sequence[str], row: Sequence[str]) -> Row:
    return {
        name: float(text) if text else float("nan") for name, text in zip(header, row, strict=False)
    }
