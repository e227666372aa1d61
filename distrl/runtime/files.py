"""Small files that are there whole or not at all, whenever the process or the machine dies."""

import contextlib
import fcntl
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


def sync(path: Path) -> None:
    """Waits until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, data: Any, durable: bool = True) -> None:
    """Replaces the file by `data`. One thread of a process at a time for one path.

    Args:
      path: of the file.
      data: for JSON.
      durable: wait until it is on the disk; else only a reader is sure to see all of it or nothing.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.new")
    part.write_text(json.dumps(data, indent=2) + "\n")
    if durable:
        sync(part)
    os.replace(part, path)
    if durable:
        sync(path.parent)


def read_json(path: Path) -> Any:
    """What `write_json` wrote; None where there is no such file."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None


def update_json(path: Path, change: Callable[[dict[str, Any]], T]) -> T:
    """Has `change` alter the file's dictionary; others who do the same wait for their turn.

    Args:
      path: of the file, which need not be there.
      change: alters its argument in place. It must be quick.

    Returns:
      What `change` returned.
    """
    with _turn(path.parent):
        data = read_json(path) or {}
        result = change(data)
        write_json(path, data)
    return result


@contextlib.contextmanager
def _turn(folder: Path) -> Iterator[None]:
    """Only one thread of all processes at a time; that of a dead one is over."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
