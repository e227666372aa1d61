"""Reverb's own checkpoints under ours: what is in them, and how a server begins with one.

Reverb restores the limits that a table had when it was saved, whatever the program says now, and
finds tables by their names. So a copy is loaded in which the table has the name, the sizes and the
limits of now; its data is not copied, but has a second name on the disk.
"""

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
from distrl.replay.table.files import read_facts, samples_under_ratio, write_facts
from distrl.types import Trajectory

FOLDER = "reverb"
_TABLES = "tables.tfrecord"


def describe(
    folder: Path, name: str, columns: Columns, config: ReplayConfig, per_item: int
) -> dict[str, Any]:
    """Says beside Reverb's checkpoint, in `folder / FOLDER`, what is in it.

    Returns:
      Its counts, in unrolls.
    """
    table = _table(folder / FOLDER, name)
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
    """A server's checkpointer, which writes to `root`, and loads what was saved if there is any.

    Args:
      root: is emptied: whatever lies there was left by a program that died.
      saved: what `ReplayBuffer.save` wrote; None: the table begins empty.
      name: of the table now.
      struct: of one stream at one step.
      config: of the table now; its sizes and limits hold.
      batch_size: unrolls of a sample.
      unrolls_per_item: now.

    Raises:
      ConfigError: another kind of table was saved, or other items.
      SpecError: its unrolls have other columns.
    """
    copy = copy_of(root)
    for rubbish in (root, copy):
        shutil.rmtree(rubbish, ignore_errors=True)
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
    table = _table(saved / FOLDER, facts["name"])
    table.table_name = name
    _limit(table, facts, config, batch_size, unrolls_per_item)
    with tf.io.TFRecordWriter(str(copy / _TABLES)) as writer:
        writer.write(table.SerializeToString())
    return reverb.checkpointers.DefaultCheckpointer(str(root), fallback_checkpoint_path=str(copy))


def copy_of(root: Path) -> Path:
    """Where the copy lies that a server loads; of no use once it has."""
    return root.with_name(f"{root.name}.saved")


def _table(folder: Path, name: str) -> Any:
    """The table's record in a checkpoint of Reverb's."""
    with open(folder / _TABLES, "rb") as file:
        # Of each record: its length, a checksum of that, the record, and a checksum of it.
        while head := file.read(12):
            record = file.read(struct.unpack("<Q", head[:8])[0])
            table = checkpoint_pb2.PriorityTableCheckpoint.FromString(record)
            if table.table_name == name:
                return table
            file.seek(4, os.SEEK_CUR)
    raise ConfigError(f"{folder} has no table {name!r}")


def _limit(
    table: Any, facts: dict[str, Any], config: ReplayConfig, batch_size: int, per_item: int
) -> None:
    """Gives the table the sizes and limits of `config`."""
    limiter = table.rate_limiter
    table.max_size = config.max_size // per_item
    excess = max(0, len(table.items) - table.max_size)
    if excess:  # the newest stay
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
    limiter.sample_count = samples_under_ratio(facts, config)
    if config.table == "prioritized":
        table.sampler.prioritized.priority_exponent = config.priority_exponent
