"""`distrl tables`: how the replay tables in this machine's shared memory stand."""

from distrl.errors import ConfigError, DeadlineExceeded
from distrl.replay import shared_file
from distrl.replay.shared_table import SharedTable


def tables(arguments: list[str]) -> int:
    """Prints two lines for each table of this user: counts, limits and waits; bytes, priorities.

    Args:
      arguments: the command, and names of tables; none: all.

    Returns:
      The exit status.

    Raises:
      ConfigError: there is no table of a name.
    """
    files = {file.name: file for file in shared_file.existing() if file.creator.lives()}
    names = arguments[1:]
    for name in names:
        if name not in files:
            known = ", ".join(sorted(files)) or "none"
            raise ConfigError(f"tables: no {name!r} in shared memory; there is {known}")
    if not files:
        print("no tables in shared memory: no program of this user has one now")
    for name in names or sorted(files):
        try:
            table = SharedTable.open(name, timeout=1.0)
        except DeadlineExceeded:  # its program ended a moment ago
            continue
        print(f"{table.info()}; made by process {files[name].creator.pid}")
        print(f"  {table.contents()}")
    return 0
