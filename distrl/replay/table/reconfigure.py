"""Changes to the settings of a live table, and the checks that every kind of table makes."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from distrl.errors import ConfigError
from distrl.field_checks import did_you_mean
from distrl.replay.config import ReplayConfig

CHANGEABLE = (
    "table",
    "samples_per_insert",
    "error_buffer",
    "min_size_to_sample",
    "priority_exponent",
    "initial_priority",
)


def changed(
    config: ReplayConfig, changes: Mapping[str, Any], batch_size: int, streams: int = 1
) -> ReplayConfig:
    """Returns `config` with `changes` applied, if a live table can change to that.

    `samples_per_insert=None` switches the rate limiter off, and resets `error_buffer` and
    `strict_ratio`, which need it.

    Args:
      config: the table's current settings.
      changes: new values by name, for settings of `ReplayConfig` in `CHANGEABLE`.
      batch_size: unrolls per sample.
      streams: see `ReplayConfig.check`.

    Raises:
      ConfigError: a setting cannot change, or the settings could stall; with the arithmetic.
    """
    if not changes:
        raise ConfigError(f"nothing to change: give one of {', '.join(CHANGEABLE)}")
    for name in changes:
        check_name(name)
    if config.table == "queue":
        raise ConfigError(
            f"replay.{next(iter(changes))} cannot be changed: a queue hands out each unroll once, "
            "and has neither rate limits nor a sampler; use replay.table=uniform"
        )
    if changes.get("table") == "queue":
        raise ConfigError(
            "replay.table=queue: a live table can change between uniform and prioritized only"
        )
    changes = dict(changes)
    if changes.get("samples_per_insert", 0) is None:
        changes = {"error_buffer": None, "strict_ratio": False, **changes}
    new = dataclasses.replace(config, **changes)
    new.check(batch_size, streams)
    return new


def check_schedule(schedule: str, changes: Mapping[str, Any]) -> None:
    """Refuses changes with which a program's schedule of updates would wait for itself.

    Args:
      schedule: the program's schedule: "lockstep", "rounds", or "" if updates are made as data
        comes.
      changes: see `changed`.

    Raises:
      ConfigError: the schedule was computed with the settings as they are, or needs them.
    """
    if schedule == "lockstep":
        raise ConfigError(
            f"replay.{next(iter(changes), 'table')}: the program runs in lockstep, whose schedule "
            "counts on the table's settings; they cannot change"
        )
    if schedule == "rounds" and changes.get("samples_per_insert", 0) is None:
        raise ConfigError(
            "replay.samples_per_insert=None: the program collects in rounds (actors.min_actors), "
            "and without a number of samples per unroll a round would have no last batch"
        )


def check_name(name: str) -> None:
    """Raises ConfigError if `name` is no setting, or one that is fixed in a live table."""
    if name in CHANGEABLE:
        return
    these = f"these can be changed: {', '.join(CHANGEABLE)}"
    fields = [field.name for field in dataclasses.fields(ReplayConfig)]
    if name in fields:
        raise ConfigError(f"replay.{name} of a live table is fixed; {these}")
    hint = did_you_mean(name, fields) or f"; {these}"
    raise ConfigError(f"replay has no setting {name!r}{hint}")


def refused_by_reverb(changes: Iterable[str], table: str) -> ConfigError:
    """Returns the error for changing a Reverb table. Args: table: its name and address."""
    return ConfigError(
        f"replay.{next(iter(changes), 'table')} of {table} cannot be changed: Reverb fixes a "
        "table's rate limiter and sampler when it is made; with replay.backend=shared_memory they "
        "can be"
    )


def check_room(count: int, room: int) -> None:
    """Raises ConfigError if a queue has no room for `count` unrolls inserted at once."""
    if count > room:
        raise ConfigError(
            f"a queue with room for {room} unrolls cannot take {count} more: it keeps each until "
            "it is sampled; insert fewer, or use replay.table=uniform"
        )


def check_client(
    table: str, made: ReplayConfig, made_batch: int, config: ReplayConfig, batch_size: int
) -> None:
    """Raises ConfigError if a client's settings imply another layout than its table's.

    Args:
      table: the table's name.
      made, made_batch: settings of the table, and the unrolls of its samples.
      config, batch_size: those of the client.
    """
    for name, ours, theirs in (
        ("batch_size", batch_size, made_batch),
        ("replay.unroll_length", config.unroll_length, made.unroll_length),
        ("replay.max_size", config.max_size, made.max_size),
        ("replay.table", config.table, made.table),
    ):
        # A table can change between uniform and prioritized.
        same_layout = name == "replay.table" and "queue" not in (ours, theirs)
        if ours != theirs and not same_layout:
            raise ConfigError(
                f"table {table!r} was made with {name}={theirs}, and its client has {ours}"
            )
