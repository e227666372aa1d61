"""`distrl tables`: shows this machine's replay tables, and changes their settings."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distrl.errors import ConfigError, DeadlineExceeded, Stopped
from distrl.launch.cli import config_flags
from distrl.launch.supervision.launcher_process import is_running, launcher_of
from distrl.replay.buffer import ReplayConfig
from distrl.replay.shared.table import SharedTable
from distrl.replay.table import reconfigure
from distrl.replay.table.info import Contents, TableInfo
from distrl.runtime.process_stat import process_stat
from distrl.shared_memory import segment
from distrl.shared_memory.segment import SharedFile


def tables(arguments: list[str]) -> int:
    """Prints two lines for each of this user's tables, after changing the settings of one.

    The first line has counts, limits and blocked processes; the second one bytes, sampler and ages.

    Args:
      arguments: the command, and names of tables or folders of runs (none: all tables); each
        `--set NAME=VALUE` changes a setting of the table, of which one must be named.

    Returns:
      The exit status.

    Raises:
      ConfigError: an unknown table, a run without one, or a change that is refused.
    """
    words, changes = _parse(arguments[1:])
    files = {
        file.name: file
        for file in segment.existing()
        if file.creator.lives() and (file.is_table or file.is_address)
    }
    known = ", ".join(sorted(files)) or "none"
    names: list[str] = []
    for word in words:
        if word in files:
            names.append(word)
        elif Path(word).is_dir():
            names += _tables_of_run(word, files)
        else:
            raise ConfigError(
                f"tables: no table {word!r} on this machine; existing tables: {known}"
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
            print(f"table {name!r}: {error}")  # another version of distrl made it
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


def _tables_of_run(run_dir: str, files: Mapping[str, SharedFile]) -> list[str]:
    """Returns the names of the tables that a run's processes on this machine have made.

    Raises:
      ConfigError: no program runs there, or it has no table here.
    """
    launcher = launcher_of(Path(run_dir))
    if launcher is None or not launcher.lives or not is_running(Path(run_dir)):
        raise ConfigError(f"tables: {run_dir}: no program is running there on this machine")
    names = [name for name in sorted(files) if launcher.pid in _ancestors(files[name].creator.pid)]
    if not names:
        raise ConfigError(
            f"tables: {run_dir}: its program has no table that others can read: it has just "
            "started, or keeps its replay in its one process"
        )
    return names


def _ancestors(pid: int) -> list[int]:
    """Returns a process and those above it, up to one that has ended."""
    pids = [pid]
    while (stat := process_stat(pids[-1])) is not None and stat.parent > 0:
        pids.append(stat.parent)
    return pids


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
