"""`distrl tables`: how this machine's replay tables stand, and changes of their settings."""

from typing import Any

from distrl.errors import ConfigError, DeadlineExceeded, Stopped
from distrl.replay import live, shared_file
from distrl.replay.buffer import ReplayConfig
from distrl.replay.shared_table import SharedTable
from launch import overrides


def tables(arguments: list[str]) -> int:
    """Prints two lines for each table of this user: counts, limits and waits; bytes, priorities.

    Args:
      arguments: the command, and names of tables (none: all); `--set NAME=VALUE`, once or more,
        changes a setting of the one table named, first.

    Returns:
      The exit status.

    Raises:
      ConfigError: there is no table of a name, or the change is refused.
    """
    names, changes = _parse(arguments[1:])
    files = {file.name: file for file in shared_file.existing() if file.creator.lives()}
    known = ", ".join(sorted(files)) or "none"
    for name in names:
        if name not in files:
            raise ConfigError(f"tables: no {name!r} in shared memory; there is {known}")
    if changes and len(names) != 1:
        raise ConfigError(f"tables: --set needs the name of one table; there is {known}")
    if not files:
        print("no tables in shared memory: no program of this user has one now")
    for name in names or sorted(files):
        try:
            table = SharedTable.open(name, timeout=1.0)
            if changes:
                table.reconfigure(**changes)
        except (DeadlineExceeded, Stopped) as error:  # its program ended a moment ago
            if changes:
                raise ConfigError(f"tables: nothing was changed: {error}") from error
            continue
        print(f"{table.info()}; made by process {files[name].creator.pid}")
        print(f"  {table.contents()}")
    return 0


def _parse(arguments: list[str]) -> tuple[list[str], dict[str, Any]]:
    """Names of tables, and settings to change."""
    names: list[str] = []
    changes: dict[str, Any] = {}
    rest = iter(arguments)
    for argument in rest:
        if not argument.startswith("-"):
            names.append(argument)
            continue
        flag, _, setting = argument.lstrip("-").partition("=")
        if flag != "set":
            raise ConfigError(f"tables: no flag {argument!r}; there is --set NAME=VALUE")
        setting = setting or next(rest, "")
        name, equals, text = setting.partition("=")
        if not equals:
            raise ConfigError(f"tables: --set {setting}: expected NAME=VALUE")
        name = name.removeprefix("replay.")
        live.check_name(name)
        changes[name] = overrides.setting(ReplayConfig, name, text)
    return names, changes
