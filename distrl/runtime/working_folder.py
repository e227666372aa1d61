"""The folder in which a command was started. Environments may change it, as simulators do."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from distrl.errors import ConfigError

_started_in: list[Path] = []


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """In the context, the folder that is current at its start counts as the command's."""
    before = _started_in[:]
    with contextlib.suppress(FileNotFoundError):  # it is gone: then the current one
        _started_in[:] = [Path.cwd()]
    try:
        yield
    finally:
        _started_in[:] = before


def check_exists() -> None:
    """Raises ConfigError if the current folder is gone, for which libraries end the process."""
    try:
        os.getcwd()
    except FileNotFoundError:
        raise ConfigError("the current folder has been deleted; change to another") from None


def absolute(path: str | os.PathLike[str]) -> Path:
    """Returns a path that a user has given, wherever the process is now."""
    path = Path(path)
    return path if path.is_absolute() else _start() / path


def shown(path: str | os.PathLike[str]) -> str:
    """Returns a path as a user would name it: relative if it is below where the command began."""
    start, path = _start(), Path(path)
    return str(path.relative_to(start) if path.is_relative_to(start) else path)


def _start() -> Path:
    return _started_in[0] if _started_in else Path.cwd()
