"""The table of a Reverb server, and its state as seen by other processes."""

import math
from collections.abc import Mapping
from typing import Any

import reverb
from reverb import pybind

from distrl.errors import ConfigError
from distrl.replay.columns import Columns
from distrl.replay.config import RateLimits, ReplayConfig
from distrl.replay.reverb.calls import ServerCalls
from distrl.replay.reverb.max_priority import SUFFIX
from distrl.replay.table.info import Ages, Contents, TableInfo
from distrl.replay.table.ring import by_priority
from distrl.types import Trajectory


def reverb_tables(
    config: ReplayConfig,
    struct: Trajectory,
    batch_size: int,
    name: str,
    unrolls_per_item: int = 1,
) -> list[reverb.Table]:
    """Returns the tables of a server, for `reverb.Server` or a `ReverbNode`: that of unrolls first.

    Args:
      config: the table's settings.
      struct: one stream at one step, from `distrl.specs.trajectory_struct`.
      batch_size: unrolls per sample.
      name: unique to the program and task: two servers can listen on the same port.
      unrolls_per_item: see `ReverbReplayBuffer`.

    Raises:
      ConfigError: sizes that are no multiples of an item's, or settings that Reverb cannot have.
    """
    check_items(config, batch_size, unrolls_per_item)
    nbytes = Columns(struct, config.unroll_length).nbytes(unrolls_per_item)
    if nbytes >= 2**31:
        raise ConfigError(
            f"an item of {unrolls_per_item} unrolls is {nbytes / 1e9:.1f} GB; Reverb takes less "
            f"than 2.1 GB: at most {max(1, unrolls_per_item * 2**31 // nbytes)} unrolls an item"
        )
    if config.table == "queue":
        return [reverb.Table.queue(name, config.max_size // unrolls_per_item)]
    limits = config.limits(batch_size)
    if config.samples_per_insert is None:
        limiter = reverb.rate_limiters.MinSize(limits.min_size_to_sample)
    else:
        # As `SampleToInsertRatio`, which refuses buffers that `config.check` knows to be enough.
        limiter = reverb.rate_limiters.RateLimiter(pybind.RateLimiter(**limits._asdict()))
    weighted = by_priority(config)
    sampler = reverb.selectors.Uniform()
    if weighted:
        sampler = reverb.selectors.Prioritized(config.priority_exponent)
    table = reverb.Table(
        name,
        sampler=sampler,
        remover=reverb.selectors.Fifo(),
        max_size=config.max_size,
        rate_limiter=limiter,
    )
    return [table, _largest_table(name)] if weighted else [table]


def _largest_table(name: str) -> reverb.Table:
    """Returns the table of the largest priority so far; see `distrl.replay.reverb.max_priority`."""
    return reverb.Table(
        name + SUFFIX,
        sampler=reverb.selectors.MaxHeap(),
        remover=reverb.selectors.MinHeap(),
        max_size=2,
        rate_limiter=reverb.rate_limiters.MinSize(1),
    )


def check_items(config: ReplayConfig, batch_size: int, unrolls_per_item: int) -> None:
    """Raises ConfigError if a Reverb table cannot have these settings."""
    config.check(batch_size)
    if config.sampler is not None:
        raise ConfigError(
            f"replay.sampler={type(config.sampler).__name__} is not for Reverb, which has only its "
            "own samplers; with replay.backend=shared_memory it can be used"
        )
    if unrolls_per_item < 1:
        raise ConfigError(f"unrolls_per_item must be 1 or more; got {unrolls_per_item}")
    if config.table != "queue" and unrolls_per_item != 1:
        raise ConfigError(
            f"unrolls_per_item={unrolls_per_item} must be 1 for replay.table={config.table}: its "
            "unrolls are sampled one by one"
        )
    for what, size in (("batch_size", batch_size), ("replay.max_size", config.max_size)):
        if size % unrolls_per_item:
            raise ConfigError(
                f"{what}={size} is no multiple of unrolls_per_item={unrolls_per_item}; "
                f"{math.gcd(size, unrolls_per_item)} would be"
            )


def about_tables(
    config: ReplayConfig, struct: Trajectory, address: str, unrolls_per_item: int = 1
) -> dict[str, Any]:
    """Returns what `served_table` needs, for `distrl.replay.shared.announce.announced`."""
    return {
        "address": address,
        "unrolls_per_item": unrolls_per_item,
        "unroll_bytes": Columns(struct, config.unroll_length).nbytes(1),
        "max_size": config.max_size,
        "sampler": config.sampling,
    }


def served_table(name: str, about: Mapping[str, Any]) -> tuple[TableInfo, Contents]:
    """Returns the state of a table of a server in another process, as far as Reverb reports it.

    It reports no waits, no priorities, and no ages in seconds. Sizes in bytes are those before
    Reverb's compression.

    Args:
      name: the table's name.
      about: what `about_tables` returned.

    Raises:
      DeadlineExceeded, RuntimeError: the server does not answer, or has no such table.
    """
    server = ServerCalls(reverb.Client(about["address"]), name)
    info = table_info(server.info(None), about["unrolls_per_item"])
    nbytes = about["unroll_bytes"]
    ages = Ages.of(info.size)  # all tables remove the oldest item
    contents = Contents(info.size * nbytes, info.max_size * nbytes, about["sampler"], ages)
    return info, contents


def table_info(info: Any, unrolls_per_item: int) -> TableInfo:
    """Converts Reverb's `TableInfo`."""
    limiter = info.rate_limiter_info
    limits = None
    if info.max_times_sampled != 1:  # no queue
        low, high = (
            value if abs(value) < 1e300 else math.copysign(math.inf, value)
            for value in (limiter.min_diff, limiter.max_diff)
        )
        limits = RateLimits(limiter.samples_per_insert, limiter.min_size_to_sample, low, high)
    return TableInfo(
        info.name,
        info.current_size * unrolls_per_item,
        info.max_size * unrolls_per_item,
        limiter.insert_stats.completed * unrolls_per_item,
        limiter.sample_stats.completed * unrolls_per_item,
        limits,
    )
