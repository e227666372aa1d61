"""A table's contents in files: each column as a NumPy file, the oldest unroll first.

They are the same of a table in one process and in shared memory. Columns are copied slice by slice,
so that a table of any size needs little memory more, while the table goes on: what it removes
meanwhile is the oldest, which is therefore copied last, and left out where it comes too late.
"""

import contextlib
import json
import math
import os
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from distrl.errors import ConfigError, SpecError
from distrl.replay.buffer import ReplayConfig
from distrl.replay.columns import Block, Columns

_FACTS = "table.json"
_PRIORITIES = "priorities.npy"
_FORMAT = 1
SLICE_BYTES = 8 << 20


class TableSnapshot(Protocol):
    """A table as it stood at one moment, which is copied out while the table goes on.

    Attributes:
      columns: of its unrolls.
      facts: "inserts", "samples" and "first" (the key of the oldest unroll), and "rng" (of the
        choice of samples; None: a queue, which has none).
      size: unrolls.
      priorities: float64 `[size]`; None: all alike.
    """

    columns: Columns
    facts: dict[str, Any]
    size: int
    priorities: np.ndarray | None

    def read(self, start: int, stop: int) -> tuple[Block, int]:
        """Unrolls `start` to `stop - 1`, counted from the oldest, without those that are gone.

        Returns:
          The unrolls, and how many are gone: always the oldest.
        """


def save(frozen: TableSnapshot, config: ReplayConfig, folder: Path) -> dict[str, Any]:
    """Writes the table to `folder`, which it makes.

    Returns:
      Its counts, for the manifest.

    Raises:
      OSError: the disk is full, say.
    """
    folder.mkdir()
    columns, size = frozen.columns, frozen.size
    gone = 0
    with contextlib.ExitStack() as stack:
        files = []
        for i, leaf in enumerate(columns.leaves):
            file = stack.enter_context(open(folder / f"{i}.npy", "wb"))
            shape, kind = _shape(columns, i, size), np.dtype(leaf.dtype).str
            header = {"descr": kind, "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
            file.flush()
            files.append((file.fileno(), file.tell()))
        step = _slice(columns)
        for stop in range(size, 0, -step):
            start = max(0, stop - step)
            block, late = frozen.read(start, stop)
            for (descriptor, offset), column, time in zip(files, block.columns, columns.has_time):
                rows = np.ascontiguousarray(np.moveaxis(column, 1, 0) if time else column)
                row = rows.nbytes // max(1, block.size)
                _write(descriptor, rows, offset + (start + late) * row)
            if late:
                gone = start + late
                break
    if frozen.priorities is not None:
        np.save(folder / _PRIORITIES, frozen.priorities)
    counts = {**frozen.facts, "size": size - gone, "first": frozen.facts["first"] + gone}
    if config.table == "queue":
        counts["samples"] = counts["first"]  # what is not there has been sampled
    facts = {**counts, "skipped": gone}  # rows of the files that hold nothing
    write_facts(folder, "files", columns, config, facts)
    return {name: counts[name] for name in ("size", "inserts", "samples")}


def write_facts(
    folder: Path, kind: str, columns: Columns, config: ReplayConfig, facts: dict[str, Any]
) -> None:
    """Writes what `read_facts` checks, and `facts`. `kind`: "files" or "reverb"."""
    about = {
        "format": _FORMAT,
        "kind": kind,
        **facts,
        "table": config.table,
        "unroll_length": config.unroll_length,
        "samples_per_insert": config.samples_per_insert,
        "columns": _described(columns),
    }
    (folder / _FACTS).write_text(json.dumps(about, indent=2) + "\n")


def read_facts(folder: Path, columns: Columns, config: ReplayConfig) -> dict[str, Any]:
    """What is known of a table in files, which suits the one that is made now.

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
                f"{folder} is of a table with replay.{name}={facts[name]}, not "
                f"{getattr(config, name)}"
            )
    mine, its = _described(columns), facts["columns"]
    for name in [*mine, *its]:
        if mine.get(name) != its.get(name):
            raise SpecError(
                f"{folder}: an unroll{name}: expected {mine.get(name, 'none')}, got "
                f"{its.get(name, 'none')}; it was saved with another environment, agent or "
                "unroll length"
            )
    return facts


def _described(columns: Columns) -> dict[str, str]:
    """By column, what an unroll has of it."""
    return {
        name: f"{np.dtype(leaf.dtype).name}{list(_shape(columns, i, 1)[1:])}"
        for i, (name, leaf) in enumerate(zip(columns.names, columns.leaves, strict=True))
    }


def samples_by_now(facts: dict[str, Any], config: ReplayConfig) -> int:
    """Samples of a uniform or prioritized table, counted as if its ratio had always been this one.

    Otherwise one side would wait until the other has made up for the whole past.
    """
    ratio = config.samples_per_insert
    if ratio is None or ratio == facts["samples_per_insert"]:
        return facts["samples"]
    return max(0, math.floor(ratio * (facts["inserts"] - config.min_size_to_sample)))


def _shape(columns: Columns, column: int, size: int) -> tuple[int, ...]:
    """Of a column's file: the unrolls come first, also where a block has time before them."""
    shape = columns.shape(column, size)
    return (size, columns.rows, *shape[2:]) if columns.has_time[column] else shape


def _slice(columns: Columns) -> int:
    """Unrolls that are copied at once."""
    return max(1, SLICE_BYTES // columns.nbytes(1))


def _write(descriptor: int, rows: np.ndarray, offset: int) -> None:
    data = rows.reshape(-1).view(np.uint8).data
    while data:
        written = os.pwrite(descriptor, data, offset)
        data, offset = data[written:], offset + written


class Stored:
    """What `save` wrote, for a table that is made now.

    Attributes:
      inserts, samples: that the table has had.
      first: key of the oldest unroll.
      size: unrolls.
      priorities: float64 `[size]`, of a prioritized table; None: all alike.
      rng: of the choice of samples; None: a queue, which has none.
    """

    def __init__(self, folder: Path, columns: Columns, config: ReplayConfig):
        """Args:
        folder: written by `save`.
        columns: of the table.
        config: of the table. Its sizes and limits hold, whatever they were.

        Raises:
          ConfigError: it is another kind of table.
          SpecError: it has other columns; the message names the first that differs.
        """
        facts = read_facts(folder, columns, config)
        if facts["kind"] != "files":
            raise ConfigError(f"{folder} was written by a {facts['kind']} server, which reads it")
        self._columns = columns
        self._skipped = facts["skipped"]
        self.inserts, self.samples = facts["inserts"], facts["samples"]
        self.first, self.size, self.rng = facts["first"], facts["size"], facts["rng"]
        excess = max(0, self.size - config.max_size)
        if excess:  # the newest stay
            self._skipped += excess
            self.first += excess
            self.size -= excess
        if config.table == "queue":
            self.samples = self.first  # what is not there has been sampled
        else:
            self.samples = samples_by_now(facts, config)
        self._files = [
            np.load(folder / f"{i}.npy", mmap_mode="r") for i in range(len(columns.names))
        ]
        self.priorities: np.ndarray | None = None
        if (folder / _PRIORITIES).exists():
            self.priorities = np.load(folder / _PRIORITIES)[self._skipped :]

    def keys(self) -> np.ndarray:
        """Int64 `[size]`, the oldest first."""
        return np.arange(self.first, self.first + self.size)

    def slices(self) -> list[tuple[int, int]]:
        """From where to where to `read` it."""
        step = _slice(self._columns)
        return [(i, min(i + step, self.size)) for i in range(0, self.size, step)]

    def read(self, start: int, stop: int) -> Block:
        """Unrolls `start` to `stop - 1`, counted from the oldest."""
        block = self._columns.allocate(stop - start)
        rows = slice(self._skipped + start, self._skipped + stop)
        for file, column, leaf, time in zip(
            self._files, block.columns, self._columns.leaves, self._columns.has_time
        ):
            values = np.asarray(file[rows]).view(np.dtype(leaf.dtype))
            column[...] = np.moveaxis(values, 0, 1) if time else values
        return block
