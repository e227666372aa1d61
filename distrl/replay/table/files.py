"""Saved tables: each column as a NumPy file, the oldest unroll first.

The format is the same for tables in one process and in shared memory. Columns are copied slice by
slice, which needs little extra memory, while the table stays in use. Unrolls that it removes
meanwhile are the oldest ones; these are copied last, and left out if they are already gone.
"""

import json
import math
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from distrl.errors import ConfigError, SpecError
from distrl.replay.columns import Block, Columns
from distrl.replay.config import RateLimits, ReplayConfig

_FACTS = "table.json"
_PRIORITIES = "priorities.npy"
_FORMAT = 1
SLICE_BYTES = 8 << 20


class TableSnapshot(Protocol):
    """A table's contents at one moment, to be copied while the table stays in use.

    Attributes:
      columns: the columns of its unrolls.
      facts: "inserts", "samples", "first" (the key of the oldest unroll) and "rng" (state of the
        random generator for samples; None for a queue).
      size: number of unrolls.
      priorities: float64 `[size]`; None: the table has none.
    """

    columns: Columns
    facts: dict[str, Any]
    size: int
    priorities: npt.NDArray[Any] | None

    def read(self, start: int, stop: int) -> tuple[Block, int]:
        """Reads unrolls `start` to `stop - 1`, counted from the oldest, except overwritten ones.

        Returns:
          The unrolls, and how many have been overwritten: always the oldest.
        """


def save(snapshot: TableSnapshot, config: ReplayConfig, folder: Path) -> dict[str, Any]:
    """Creates `folder` and writes the table to it.

    Returns:
      The table's counts, for the manifest.

    Raises:
      OSError: writing failed, e.g. the disk is full.
    """
    folder.mkdir()
    columns, size = snapshot.columns, snapshot.size
    gone = 0
    files = []
    for i, leaf in enumerate(columns.leaves):
        path = folder / f"{i}.npy"
        with open(path, "wb") as file:
            shape, kind = _file_shape(columns, i, size), np.dtype(leaf.dtype).str
            header = {"descr": kind, "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
            files.append((path, file.tell()))
            # Its whole size, even if every unroll is removed before it is copied.
            file.truncate(file.tell() + math.prod(shape) * np.dtype(kind).itemsize)
    step = _unrolls_per_slice(columns)
    for stop in range(size, 0, -step):
        start = max(0, stop - step)
        block, overwritten = snapshot.read(start, stop)
        for (path, offset), column, time in zip(files, block.columns, columns.has_time):
            rows = np.ascontiguousarray(np.moveaxis(column, 1, 0) if time else column)
            row = rows.nbytes // max(1, block.size)
            _write(path, rows, offset + (start + overwritten) * row)
        if overwritten:
            gone = start + overwritten
            break
    if snapshot.priorities is not None:
        np.save(folder / _PRIORITIES, snapshot.priorities)
    counts = {**snapshot.facts, "size": size - gone, "first": snapshot.facts["first"] + gone}
    if config.table == "queue":
        counts["samples"] = counts["first"]  # missing unrolls have been sampled
    facts = {**counts, "skipped": gone}  # rows of the files without an unroll
    write_facts(folder, "files", columns, config, facts)
    return {name: counts[name] for name in ("size", "inserts", "samples")}


def write_facts(
    folder: Path, kind: str, columns: Columns, config: ReplayConfig, facts: dict[str, Any]
) -> None:
    """Writes `facts` and what `read_facts` checks. Args: kind: "files" or "reverb"."""
    described = {
        "format": _FORMAT,
        "kind": kind,
        "samples_per_insert": config.samples_per_insert,
        "min_size_to_sample": config.min_size_to_sample,
        **facts,
        "table": config.table,
        "unroll_length": config.unroll_length,
        "columns": _described(columns),
    }
    (folder / _FACTS).write_text(json.dumps(described, indent=2) + "\n")


def read_facts(folder: Path, columns: Columns, config: ReplayConfig) -> dict[str, Any]:
    """Returns the facts of a saved table, after checking that the table of `config` can load it.

    Raises:
      ConfigError: it is another kind of table.
      SpecError: it has other columns; the message names the first that differs.
    """
    facts = json.loads((folder / _FACTS).read_text())
    if facts["format"] != _FORMAT:
        raise ConfigError(f"{folder}: format {facts['format']}; this program reads {_FORMAT}")
    for name in ("table", "unroll_length"):
        if facts[name] != getattr(config, name):
            raise ConfigError(
                f"{folder} was saved by a table with replay.{name}={facts[name]}, not "
                f"{getattr(config, name)}"
            )
    expected, saved = _described(columns), facts["columns"]
    for name in [*expected, *saved]:
        if expected.get(name) != saved.get(name):
            raise SpecError(
                f"{folder}: an unroll{name}: expected {expected.get(name, 'none')}, got "
                f"{saved.get(name, 'none')}; it was saved with another environment, agent or "
                "unroll length"
            )
    return facts


def _described(columns: Columns) -> dict[str, str]:
    """Returns dtype and shape by column name, of one unroll."""
    return {
        name: f"{np.dtype(leaf.dtype).name}{list(_file_shape(columns, i, 1)[1:])}"
        for i, (name, leaf) in enumerate(zip(columns.names, columns.leaves, strict=True))
    }


def limit_facts(config: ReplayConfig, batch_size: int, limits: RateLimits | None) -> dict[str, Any]:
    """Returns what a snapshot's facts say of the limits in force.

    Args:
      config: the table's settings now, which may have changed since it was made.
      batch_size: unrolls per sample.
      limits: the limits now; None: a queue, which has none.

    Returns:
      "samples_per_insert", "min_size_to_sample", and "moved": how far the bounds are from those
      of an empty table.
    """
    if limits is None:
        return {}
    moved = 0.0
    if math.isfinite(limits.min_diff):
        moved = limits.min_diff - config.limits(batch_size).min_diff
    return {
        "samples_per_insert": config.samples_per_insert,
        "min_size_to_sample": config.min_size_to_sample,
        "moved": moved,
    }


def continued(facts: dict[str, Any], config: ReplayConfig) -> tuple[int, float]:
    """Returns a saved uniform or prioritized table's sample count, and how far its bounds moved.

    Both are under the settings of `config`. If the ratio has changed, or the size from which it
    applies, one side would otherwise block until the other has made up for the past.
    """
    ratio, samples = config.samples_per_insert, facts["samples"]
    if ratio is None:
        return samples, 0.0
    if ratio != facts["samples_per_insert"]:
        return max(0, math.floor(ratio * (facts["inserts"] - config.min_size_to_sample))), 0.0
    moved = float(facts.get("moved", 0.0))  # older tables did not save it, or saved NaN
    if not math.isfinite(moved):
        moved = 0.0
    if "min_size_to_sample" in facts:  # older tables did not save it
        size = facts["size"] + facts.get("skipped", 0)
        start = min(facts["min_size_to_sample"], size)  # a smaller table has not come to it yet
        moved += ratio * (start - config.min_size_to_sample)
    return samples, moved


def _file_shape(columns: Columns, column: int, size: int) -> tuple[int, ...]:
    """Returns the shape of a column's file: unrolls first, unlike in a block, then time."""
    shape = columns.shape(column, size)
    return (size, columns.rows, *shape[2:]) if columns.has_time[column] else shape


def _unrolls_per_slice(columns: Columns) -> int:
    """Returns the number of unrolls to copy at a time."""
    return max(1, SLICE_BYTES // columns.nbytes(1))


def _write(path: Path, rows: npt.NDArray[Any], offset: int) -> None:
    """Writes into a file, which is open only meanwhile: there may be more than descriptors."""
    with open(path, "r+b", buffering=0) as file:
        file.seek(offset)
        data = rows.reshape(-1).view(np.uint8).data
        while data:
            data = data[file.write(data) :]


class _File:
    """A column's file, which is open only while it is read, as in `_write`."""

    def __init__(self, path: Path) -> None:
        array = np.load(path, mmap_mode="r")
        self._path, self._dtype = path, array.dtype
        self._offset, self._shape = array.offset, array.shape

    def read(self, rows: slice) -> npt.NDArray[Any]:
        """Returns rows, which stay readable when the file is removed."""
        return np.memmap(self._path, self._dtype, "r", self._offset, self._shape)[rows]


class Stored:
    """A table that `save` wrote, to be loaded into a new one.

    Attributes:
      inserts: the table's insert count.
      samples: the table's sample count.
      moved: how far its bounds are from those of an empty table, under the current ratio.
      first: key of the oldest unroll.
      size: number of unrolls.
      priorities: float64 `[size]` for a prioritized table; None: the table has none.
      largest: the largest priority so far of a prioritized table.
      rng: state of the random generator for samples; None for a queue.
    """

    def __init__(self, folder: Path, columns: Columns, config: ReplayConfig):
        """Args:
        folder: the folder that `save` wrote.
        columns: the new table's columns.
        config: the new table's settings; its sizes and limits replace the saved ones.

        Raises:
          ConfigError: it is another kind of table.
          SpecError: it has other columns; the message names the first that differs.
        """
        facts = read_facts(folder, columns, config)
        if facts["kind"] != "files":
            raise ConfigError(
                f"{folder} was written by a {facts['kind']} server, and only that can load it"
            )
        self._columns = columns
        self._skipped = facts["skipped"]
        self.inserts, self.samples = facts["inserts"], facts["samples"]
        self.first, self.size, self.rng = facts["first"], facts["size"], facts["rng"]
        excess = max(0, self.size - config.max_size)
        if excess:  # keep the newest
            self._skipped += excess
            self.first += excess
            self.size -= excess
        self.moved = 0.0
        if config.table == "queue":
            self.samples = self.first  # missing unrolls have been sampled
        else:
            self.samples, self.moved = continued(facts, config)
        self._files = [_File(folder / f"{i}.npy") for i in range(len(columns.names))]
        self.priorities: npt.NDArray[Any] | None = None
        self.largest = 0.0
        if (folder / _PRIORITIES).exists():
            self.priorities = np.load(folder / _PRIORITIES)[self._skipped :]
            # Older tables did not save it: then the largest of those that are left.
            largest = np.max(self.priorities, initial=0.0)
            self.largest = float(facts.get("largest_priority", largest))
        elif config.table == "prioritized":  # uniform when saved, as `reconfigure` allows
            self.largest = float(facts.get("largest_priority", 0.0))
            self.priorities = np.full(self.size, max(config.initial_priority, self.largest))

    def keys(self) -> npt.NDArray[Any]:
        """Returns the unrolls' keys: int64 `[size]`, the oldest first."""
        return np.arange(self.first, self.first + self.size)

    def slices(self) -> list[tuple[int, int]]:
        """Returns the ranges `(start, stop)` in which to `read` it."""
        step = _unrolls_per_slice(self._columns)
        return [(i, min(i + step, self.size)) for i in range(0, self.size, step)]

    def read(self, start: int, stop: int) -> Block:
        """Reads unrolls `start` to `stop - 1`, counted from the oldest."""
        block = self._columns.allocate(stop - start)
        rows = slice(self._skipped + start, self._skipped + stop)
        for file, column, leaf, time in zip(
            self._files, block.columns, self._columns.leaves, self._columns.has_time
        ):
            values = np.asarray(file.read(rows)).view(np.dtype(leaf.dtype))
            column[...] = np.moveaxis(values, 0, 1) if time else values
        return block
