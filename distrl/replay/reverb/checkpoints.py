"""Saves and loads Reverb's checkpoints as part of distrl's.

Reverb restores the limits that a table had when it was saved, regardless of the program's settings,
and finds tables by their names. So servers load a copy in which the table has its current name,
sizes and limits; its data is hard-linked, not copied.
"""

import math
import os
import shutil
import struct
import sys
from pathlib import Path
from typing import Any

import reverb
import tensorflow as tf
from reverb.cc.checkpointing import checkpoint_pb2

from distrl.errors import ConfigError
from distrl.replay.columns import Columns
from distrl.replay.config import ReplayConfig
from distrl.replay.reverb.max_priority import SUFFIX
from distrl.replay.table.files import continued, read_facts, write_facts
from distrl.replay.table.rate_limiter import RateLimiter
from distrl.types import Trajectory

FOLDER = "reverb"
_TABLES = "tables.tfrecord"


def describe(
    folder: Path, name: str, columns: Columns, config: ReplayConfig, per_item: int
) -> dict[str, Any]:
    """Writes a description of Reverb's checkpoint, which is in `folder / FOLDER`, to `folder`.

    Returns:
      The table's counts, in unrolls.
    """
    table = _tables(folder / FOLDER, name)[name]
    limiter = table.rate_limiter
    counts = {
        "size": len(table.items) * per_item,
        "inserts": limiter.insert_count * per_item,
        "samples": limiter.sample_count * per_item,
    }
    facts = {**counts, "name": name, "unrolls_per_item": per_item}
    write_facts(folder, "reverb", columns, config, facts)
    return counts


def checkpointer(
    root: Path,
    saved: Path | None,
    name: str,
    struct: Trajectory,
    config: ReplayConfig,
    batch_size: int,
    unrolls_per_item: int,
) -> Any:
    """Returns a server's checkpointer, which writes to `root` and may load a saved table.

    Args:
      root: the folder for new checkpoints; emptied, as its contents were left by a dead program.
      saved: the folder that `ReplayAdministration.save` wrote; None: the table is initially empty.
      name: the table's current name.
      struct: one stream at one step.
      config: the table's current settings, whose sizes and limits replace the saved ones.
      batch_size: unrolls per sample.
      unrolls_per_item: current unrolls per item.

    Raises:
      ConfigError: another kind of table was saved, or with other items.
      SpecError: the saved unrolls have other columns.
    """
    copy = copy_of(root)
    for stale in (root, copy):
        shutil.rmtree(stale, ignore_errors=True)
    root.mkdir(parents=True)
    if saved is None:
        return reverb.checkpointers.DefaultCheckpointer(str(root))
    facts = read_facts(saved, Columns(struct, config.unroll_length), config)
    if facts["kind"] != "reverb":
        raise ConfigError(f"{saved} was not written by a Reverb server, which cannot read it")
    if facts["unrolls_per_item"] != unrolls_per_item:
        raise ConfigError(
            f"{saved} has {facts['unrolls_per_item']} unrolls an item, and this program "
            f"{unrolls_per_item}: actors.num_envs, actors.wait_num, learner.batch_size or "
            "replay.max_size has changed"
        )
    copy.mkdir()
    for path in (saved / FOLDER).iterdir():
        if path.name != _TABLES:
            os.link(path, copy / path.name)
    old = facts["name"]
    tables = _tables(saved / FOLDER, old)
    _set_limits(tables[old], facts, config, batch_size, unrolls_per_item)
    with tf.io.TFRecordWriter(str(copy / _TABLES)) as writer:
        for old_name, new_name in ((old, name), (old + SUFFIX, name + SUFFIX)):
            if old_name in tables:  # older checkpoints have no largest priority
                tables[old_name].table_name = new_name
                writer.write(tables[old_name].SerializeToString())
    return reverb.checkpointers.DefaultCheckpointer(str(root), fallback_checkpoint_path=str(copy))


def copy_of(root: Path) -> Path:
    """Returns the path of the copy that a server loads; it can be removed afterwards."""
    return root.with_name(f"{root.name}.saved")


def _tables(folder: Path, name: str) -> dict[str, Any]:
    """Returns the tables' records in a checkpoint of Reverb's; there must be one of this name."""
    tables = {}
    with open(folder / _TABLES, "rb") as file:
        # A record has its length, a checksum of that, its data, and a checksum of the data.
        while head := file.read(12):
            record = file.read(struct.unpack("<Q", head[:8])[0])
            table = checkpoint_pb2.PriorityTableCheckpoint.FromString(record)
            tables[table.table_name] = table
            file.seek(4, os.SEEK_CUR)
    if name not in tables:
        raise ConfigError(f"{folder} has no table {name!r}")
    return tables


def _set_limits(
    table: Any, facts: dict[str, Any], config: ReplayConfig, batch_size: int, per_item: int
) -> None:
    """Sets the table's sizes and limits to those of `config`."""
    limiter = table.rate_limiter
    table.max_size = config.max_size // per_item
    excess = max(0, len(table.items) - table.max_size)
    if excess:  # keep the newest
        del table.items[:excess]
        limiter.delete_count += excess
    if config.table == "queue":
        limiter.sample_count += excess
        limiter.max_diff = table.max_size
        return
    limits = config.limits(batch_size)
    largest = sys.float_info.max  # Reverb's infinity
    limiter.samples_per_insert = limits.samples_per_insert
    limiter.min_size_to_sample = limits.min_size_to_sample
    limiter.min_diff = max(limits.min_diff, -largest)
    limiter.max_diff = min(limits.max_diff, largest)
    samples, moved = continued(facts, config)
    counts = RateLimiter(limits, [limiter.insert_count, samples, limiter.delete_count])
    counts.resume(limits, moved)
    if math.isfinite(limits.min_diff):  # not the bounds, as the next checkpoint knows only counts
        samples = max(0, samples + math.floor(counts.limits.min_diff - limits.min_diff))
    limiter.sample_count = samples
    if config.table == "prioritized":
        table.sampler.prioritized.priority_exponent = config.priority_exponent
