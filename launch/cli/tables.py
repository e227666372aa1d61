"""`distrl tables`: shows this machine's replay tables, and changes their settings."""

from typing import Any

from distrl.errors import ConfigError, DeadlineExceeded, Stopped
from distrl.launch.cli import config_flags
from distrl.replay.buffer import ReplayConfig
from distrl.replay.shared.table import SharedTable
from distrl.replay.table import reconfigure
from distrl.replay.table.info import Contents, TableInfo
from distrl.shared_memory import segment
from distrl.shared_memory.segment import SharedFile


def tables(arguments: list[str]) -> int:
    """Prints two lines for each of this user's tables, after changing the settings of one.

    The first line has counts, limits and blocked processes; the second one bytes, sampler and ages.

    Args:
      arguments: the command, and names of tables (none: all); each `--set NAME=VALUE` changes a
        setting of the table, of which one must be named.

    Returns:
      The exit status.

    Raises:
      ConfigError: an unknown table, or a change that is refused.
    """
    names, changes = _parse(arguments[1:])
    files = {
        file.name: file
        for file in segment.existing()
        if file.creator.lives() and (file.is_table or file.is_address)
    }
    known = ", ".join(sorted(files)) or "none"
    for name in names:
        if name not in files:
            raise ConfigError(
                f"tables: no table {name!r} on this machine; existing tables: {known}"
            )
    if changes and len(names) != 1:
        raise ConfigError(f"tables: --set needs the name of one table; existing tables: {known}")
    if not files:
        print("no tables: none of this user's running programs has one on this machine")
    for name in names or sorted(files):
        file = files[name]
        try:
            info, contents = _served(file, changes) if file.is_address else _shared(file, changes)
        except ConfigError as error:
            if names:
                raise
            print(f"table {name!r}: {error}")  # of another version of distrl
            continue
        except (DeadlineExceeded, Stopped, FileNotFoundError, RuntimeError) as error:
            if changes:
                raise ConfigError(f"tables: nothing was changed: {error}") from error
            if file.creator.lives():  # otherwise its program has just ended
                print(f"table {name!r}: {error}")
            continue
        print(f"{info}; made by process {file.creator.pid}")
        print(f"  {contents}")
    return 0


def _shared(file: SharedFile, changes: dict[str, Any]) -> tuple[TableInfo, Contents]:
    """Changes and describes a table in shared memory."""
    table = SharedTable.open(file.name, timeout=1.0)
    if changes:
        table.reconfigure(**changes)
    return table.info(), table.contents()


def _served(file: SharedFile, changes: dict[str, Any]) -> tuple[TableInfo, Contents]:
    """Describes a table of a Reverb server, where nothing can be changed."""
    about = file.about()
    if changes:
        where = f"table {file.name!r} at {about['address']}"
        raise reconfigure.refused_by_reverb(changes, where)
    from distrl.replay.reverb.server import served_table  # imports TensorFlow: seconds

    return served_table(file.name, about)


def _parse(arguments: list[str]) -> tuple[list[str], dict[str, Any]]:
    """Returns names of tables, and settings to change."""
    names: list[str] = []
    changes: dict[str, Any] = {}
    rest = iter(arguments)
    for argument in rest:
        if not argument.startswith("-"):
            names.append(argument)
            continue
        flag, _, setting = argument.lstrip("-").partition("=")
        if flag != "set":
            raise ConfigError(
                f"tables: unknown flag {argument!r}; the only one is --set NAME=VALUE"
            )
        setting = setting or next(rest, "")
        name, equals, text = setting.partition("=")
        if not equals:
            raise ConfigError(f"tables: --set {setting}: expected NAME=VALUE")
        name = name.removeprefix("replay.")
        reconfigure.check_name(name)
        changes[name] = config_flags.setting(ReplayConfig, name, text)
    return names, changes
