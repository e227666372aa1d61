"""The rows of `metrics.csv`, of which a run of weeks has a million."""

import csv
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

Row = dict[str, float]
_TAIL = 1 << 16  # bytes


def read_rows(path: Path) -> Iterator[Row]:
    """Yields the rows of a file, none if it does not exist; what is not known is NaN."""
    if path.exists():
        with open(path, newline="") as file:
            yield from _rows(file)


def last_row(path: Path) -> Row | None:
    """Returns the newest whole row, without reading the others; None: there is none."""
    if not path.exists():
        return None
    with open(path, "rb") as file:
        header = file.readline()
        first, size, tail = file.tell(), os.fstat(file.fileno()).st_size, _TAIL
        while True:
            begin = max(first, size - tail)
            file.seek(begin)
            lines = file.read(size - begin).splitlines()
            if begin > first:
                del lines[:1]  # perhaps the end of a row
            if rows := list(_rows(line.decode() for line in [header, *lines])):
                return rows[-1]
            if begin == first:
                return None
            tail *= 2


def texts(path: Path, names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yields some columns of each whole row, as text: "" is not known, or no such column."""
    if not path.exists():
        return
    with open(path, newline="") as file:
        reader = csv.reader(file)
        header = next(reader, [])
        columns = [header.index(name) if name in header else None for name in names]
        for row in reader:
            if row and len(row) >= len(header):
                yield tuple("" if column is None else row[column] for column in columns)


def thinned_rows(path: Path, most: int) -> list[Row]:
    """Returns rows at equal distances, and the last one.

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
    with open(path, newline="") as file:
        reader = csv.reader(file)
        header = next(reader, [])
        for row in reader:
            if not row or len(row) < len(header):
                continue
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
    return [_row(dict(zip(header, row, strict=False))) for row in kept]


def _rows(lines: Iterable[str]) -> Iterator[Row]:
    for row in csv.DictReader(lines):
        if None not in row.values():  # else the last row is being written
            yield _row(row)


def _row(texts: dict[str, str]) -> Row:
    return {name: float(text) if text else float("nan") for name, text in texts.items()}
