"""Folders for Unix sockets: with short paths, and closed to other users."""

import contextlib
import os
import pathlib
import re
import shutil
import socket
import tempfile

from distrl.errors import ConfigError
from distrl.shared_memory.process import Process

PATH_LIMIT = 107  # bytes of a Unix socket's path, a limit of the kernel
NAME_ROOM = 8  # bytes that a socket's name in the folder may have at least: "s:15000"

_PREFIX = "distrl."
_PARENT = re.compile(r"/[\w./-]{1,59}", re.ASCII)  # what gRPC's addresses take as it is


def new_folder() -> pathlib.Path:
    """Makes a folder that only this user can enter, and in which Unix sockets can be bound.

    Their names may have `NAME_ROOM` bytes, and as many more as `PATH_LIMIT` allows.

    The caller removes it; folders of this user's processes that were killed are removed here, if
    they were in this process's PID namespace: a container may share the folder for temporary files.

    Raises:
      ConfigError: no folder for temporary files is suited.
    """
    prefix = f"{_PREFIX}{Process.this().label}."
    reasons, parents = [], ["/tmp", "/dev/shm"]
    try:
        parents.insert(0, tempfile.gettempdir())
    except FileNotFoundError as error:  # Python does not try /dev/shm
        reasons.append(str(error.strerror))
    for parent in dict.fromkeys(parents):
        if not _PARENT.fullmatch(parent):
            reasons.append(f"{parent}: its path is too long, or has unusual characters")
            continue
        with contextlib.suppress(OSError):  # a folder may be entered and not listed
            _sweep(parent)
        try:
            folder = pathlib.Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        except OSError as error:
            reasons.append(f"{parent}: {error.strerror}")
            continue
        try:
            path = folder / ("p" * NAME_ROOM)
            with socket.socket(socket.AF_UNIX) as probe:  # some network file systems refuse it
                probe.bind(str(path))
            path.unlink()
        except OSError as error:
            folder.rmdir()
            reasons.append(f"{parent}: {error.strerror or error}")  # a long path has no errno
            continue
        return folder
    raise ConfigError(f"no folder for Unix sockets; set TMPDIR: {'; '.join(reasons)}")


def _sweep(parent: str) -> None:
    """Removes the folders of this user's processes that have ended."""
    with os.scandir(parent) as entries:
        names = [entry.name for entry in entries if entry.name.startswith(_PREFIX)]
    for name in names:
        parts = name.removeprefix(_PREFIX).split(".")
        process = Process.parse(parts[:3]) if len(parts) == 4 else None
        if process is None:
            continue
        path = pathlib.Path(parent, name)
        try:
            is_ours = path.lstat().st_uid == os.geteuid()
        except FileNotFoundError:  # removed meanwhile
            continue
        if is_ours and path.is_dir() and not process.lives():
            shutil.rmtree(path, ignore_errors=True)
