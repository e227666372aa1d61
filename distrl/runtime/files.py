"""Small files that are written atomically, even if the process or the machine dies."""

import contextlib
import errno
import fcntl
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

TASKS = "tasks"
"""The folder in a run folder that has the tasks' folders, if there are several tasks."""

LOCK_S = 5.0  # to wait for another process's change of a file, which takes milliseconds
_LOCKS = Path("/proc/locks")
_POLL_S = 0.01  # between two attempts to lock it


def sync(path: Path) -> None:
    """Waits until a file, or the names in a folder, are on disk.

    Some file systems, such as shared folders of virtual machines, cannot wait for a folder.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP) or not path.is_dir():
            raise
    finally:
        os.close(descriptor)


def make_private_folder(path: Path) -> None:
    """Makes a folder that only this user can enter; one that exists keeps its mode.

    Its parents are made with the mode of the umask. Raises OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)


def owner(path: Path) -> str:
    """Returns the name of a file's owner, or "user 1001" for an owner without a name."""
    try:
        return path.owner()
    except KeyError:
        return f"user {path.stat().st_uid}"


def as_utf8(text: str) -> str:
    """Returns a text in which file names are valid UTF-8, whatever the locale.

    Python reads bytes of a name that the locale's encoding lacks as lone surrogates, which neither
    text files nor figures accept. Bytes that are not UTF-8 become U+FFFD.
    """
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


@contextlib.contextmanager
def replacing(path: Path, part: Path) -> Iterator[None]:
    """Replaces a file with `part`, which the block writes; after an error `part` is removed.

    Args:
      path: the file, which stays as it was if the block fails.
      part: a file beside it.
    """
    try:
        yield
        os.replace(part, path)
    except BaseException:  # a full disk, say: leave nothing behind
        with contextlib.suppress(OSError):
            part.unlink()
        raise


def write_private(path: Path, data: bytes) -> None:
    """Replaces a file, or a link, with a file that only this user can read. Raises OSError."""
    descriptor, part = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # mode 0600
    with replacing(path, Path(part)), os.fdopen(descriptor, "wb") as file:
        file.write(data)


def write_json(path: Path, data: Any, durable: bool = True) -> None:
    """Replaces a file with `data`. Only one thread of a process at a time may write a path.

    Args:
      path: the file.
      data: plain data for JSON.
      durable: wait until it is on disk. Otherwise readers see all of it or nothing, but a crash of
        the machine may lose it.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.new")
    with replacing(path, part):
        part.write_text(json.dumps(data, indent=2) + "\n")
        if durable:
            sync(part)
    if durable:
        sync(path.parent)


def read_json(path: Path) -> Any:
    """Reads what `write_json` wrote; returns None if there is no such file."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None


def read_dict(
    path: Path, is_intact: Callable[[dict[str, Any]], bool] = lambda data: True
) -> dict[str, Any] | None:
    """Returns the dictionary in a file; None if there is no such file or it is damaged.

    Args:
      path: the file.
      is_intact: whether the dictionary is as it was written.
    """
    try:
        data = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    return data if isinstance(data, dict) and is_intact(data) else None


def update_json(
    path: Path,
    change: Callable[[dict[str, Any]], T],
    begin: Callable[[], dict[str, Any]] = dict,
    is_intact: Callable[[dict[str, Any]], bool] = lambda data: True,
) -> T:
    """Changes the dictionary in a file, under a lock that all processes share.

    Args:
      path: the file, which need not exist.
      change: changes its argument in place. It must be quick.
      begin: returns the dictionary if the file is missing or damaged.
      is_intact: see `read_dict`.

    Returns:
      What `change` returned.

    Raises:
      OSError: the file cannot be read or written, or another process keeps it locked.
    """
    with locked(path, LOCK_S):
        data = read_dict(path, is_intact)
        if data is None:
            data = begin()
        result = change(data)
        write_json(path, data)
    return result


@contextlib.contextmanager
def locked(path: Path, seconds: float) -> Iterator[None]:
    """Locks a file's folder against all other threads and processes; a dead process releases it.

    Args:
      path: the file.
      seconds: how long to wait while another process or thread has it locked.

    Raises:
      OSError: the folder cannot be opened; a TimeoutError that names the holder if it is still
        locked after these seconds.
    """
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        deadline = time.monotonic() + seconds
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise TimeoutError(
                        f"{path}: its folder has been locked for {seconds:g} s by "
                        f"{_describe_holder(descriptor)}"
                    ) from None
            time.sleep(_POLL_S)
        yield
    finally:
        os.close(descriptor)


def _describe_holder(descriptor: int) -> str:
    """Returns which process has locked an open file, and what to do about it."""
    status = os.fstat(descriptor)
    inode = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    for line in _LOCKS.read_text().splitlines():
        fields = line.split()  # "1:", perhaps "->" for one that waits, "FLOCK", ...
        if fields[1] == "FLOCK" and fields[5] == inode and int(fields[4]) > 0:
            pid = fields[4]
            return f"process {pid}: resume it if it is stopped (kill -CONT {pid}), or end it"
    return "a process that is not seen here, perhaps on another machine: resume it or end it"
