"""Creates, names, finds and removes files in shared memory.

A replay table is one file in `/dev/shm`, called `distrl.NAME.NAMESPACE.PID.START` after its
creator, which may differ from the process that wrote the file. A process id with its start time
identifies a process uniquely in its PID namespace, so that files of dead creators can be told from
those in use. Files of other namespaces, such as those of containers that share `/dev/shm`, are
ignored.

The same name with `.address` is a small file with the address of a table elsewhere (on a Reverb
server), with `.requests` the requests of an inference service, with `.version` a version of
parameters, and with `.board` the newest one.
"""

import importlib.util
import json
import mmap
import os
import threading
import time
import urllib.parse
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from distrl.errors import ConfigError, DeadlineExceeded, Stopped
from distrl.shared_memory.process import Process

FOLDER = Path("/dev/shm")
_PREFIX = "distrl."
_UNFINISHED = ".new"  # suffix of a file that is being written
_ADDRESS = ".address"  # suffix of a file with the address of a table elsewhere
_REQUESTS = ".requests"  # suffix of a file with the requests of a service
_VERSION = ".version"  # suffix of a file with one version of something large
_BOARD = ".board"  # suffix of a file with the newest version of something small
_SUFFIXES = (_ADDRESS, _REQUESTS, _VERSION, _BOARD)  # suffixes of finished files but tables'
_FIRST_LINE_S = 5.0  # a wait for a file is first reported after this; then at each doubling
_POLL = 0.02  # seconds between two searches for a file: there are no notifications


class Kind(NamedTuple):
    """What is in a file.

    Attributes:
      noun: what messages call it.
      suffix: suffix of the file's name.
      advice: what to do if there is no memory for it, in terms of settings.
      elsewhere: a setting that keeps it elsewhere, and the package that this needs.
    """

    noun: str
    suffix: str
    advice: tuple[str, ...] = ("give it more memory",)
    elsewhere: tuple[str, str] | None = None

    def choices(self) -> str:
        """Returns what to do if there is no memory for it, with what is installed here."""
        choices = list(self.advice)
        if self.elsewhere is not None and importlib.util.find_spec(self.elsewhere[1]) is not None:
            choices.append(f"use {self.elsewhere[0]}")
        *first, last = choices
        return f"{', '.join(first)}, or {last}" if first else last


TABLE = Kind(
    "table",
    "",
    ("use a smaller replay.max_size", "give it more memory", "take --topology=single_process"),
    ("replay.backend=reverb", "reverb"),
)
REQUESTS = Kind(
    "request file",
    _REQUESTS,
    ("use a smaller actors.num_envs", "give it more memory", "take --topology=heavy_env"),
    ("inference.transport=courier", "courier"),
)
VERSION = Kind("file of parameters", _VERSION)
BOARD = Kind("board of parameters", _BOARD)


class SharedFile(NamedTuple):
    """A file of distrl in shared memory."""

    path: Path
    name: str
    creator: Process

    @property
    def is_table(self) -> bool:
        """False for an address, and for a table that is being created."""
        return self.path.suffix not in (_UNFINISHED, *_SUFFIXES)

    @property
    def is_address(self) -> bool:
        """Whether the file has the address of a table elsewhere."""
        return self.path.suffix == _ADDRESS

    def is_finished(self, kind: Kind) -> bool:
        """Whether it is a finished file of this kind."""
        return self.is_table if kind is TABLE else self.path.suffix == kind.suffix

    def about(self) -> dict[str, Any]:
        """Returns what `announced` wrote. Raises FileNotFoundError if the file was removed."""
        return json.loads(self.path.read_text())

    @classmethod
    def parse(cls, path: Path) -> "SharedFile | None":
        """Parses the file's name; returns None unless it is one of this PID namespace."""
        text = path.name.removesuffix(_UNFINISHED)
        for suffix in _SUFFIXES:
            text = text.removesuffix(suffix)
        name, *label = text.removeprefix(_PREFIX).rsplit(".", 3)
        creator = Process.parse(label) if text.startswith(_PREFIX) else None
        return None if creator is None else cls(path, urllib.parse.unquote(name), creator)

    def final_path(self) -> Path:
        """Returns the path that an unfinished table will have once it is finished."""
        return Path(str(self.path).removesuffix(_UNFINISHED))

    def address_path(self) -> Path:
        """Returns the path that an unfinished address will have once it is finished."""
        return Path(f"{self.final_path()}{_ADDRESS}")

    def map(self) -> npt.NDArray[Any]:
        """Maps the file: uint8, shared by all who map it; unmapped when the array is deleted."""
        with open(self.path, "r+b") as file:
            return np.frombuffer(mmap.mmap(file.fileno(), 0), np.uint8)


def existing() -> list[SharedFile]:
    """Returns all files of this user in this PID namespace, unfinished and dead ones, too."""
    files = []
    for path in FOLDER.glob(_PREFIX + "*"):
        file = SharedFile.parse(path)
        try:
            if file is not None and path.stat().st_uid == os.getuid():
                files.append(file)
        except FileNotFoundError:  # removed meanwhile
            continue
    return files


def exists(name: str, kind: Kind = TABLE) -> bool:
    """Returns whether a finished file of this name is in shared memory, and in use."""
    return any(f.name == name and f.is_finished(kind) and f.creator.lives() for f in existing())


def sweep(of_this_process: bool = False) -> list[str]:
    """Removes the files of dead creators; returns the names of their tables.

    Args:
      of_this_process: also remove the files of this process, which will not clean up itself.
    """
    removed = []
    for file in existing():
        if not file.creator.lives() or (of_this_process and file.creator == Process.this()):
            file.path.unlink(missing_ok=True)
            removed.append(file.name)
    return removed


def check_writable(name: str, kind: Kind = TABLE) -> None:
    """Raises ConfigError if no file can be made: the folder is read-only, or another user's."""
    if not os.access(FOLDER, os.W_OK | os.X_OK):
        raise ConfigError(
            f"{kind.noun} {name!r} needs {FOLDER}, which cannot be written: mount a tmpfs there "
            "that you can write to, or take --topology=single_process"
        )


def check_room(name: str, nbytes: int, kind: Kind = TABLE) -> None:
    """Raises ConfigError if a file of `nbytes` cannot be made, or there is no memory for it.

    Files that dead creators have left are removed first.
    """
    check_writable(name, kind)
    sweep()
    folder = os.statvfs(FOLDER)
    free = folder.f_bavail * folder.f_frsize
    if nbytes > free:
        raise ConfigError(
            f"{kind.noun} {name!r} needs {nbytes / 1e6:,.1f} MB of {FOLDER}, which has "
            f"{free / 1e6:,.1f} MB left: {kind.choices()}"
        )


def create(name: str, nbytes: int, creator: Process, kind: Kind = TABLE) -> SharedFile:
    """Creates a file of `nbytes` zeros that others do not find until `publish`.

    The memory is allocated now, because running out of it later would be a SIGBUS.

    Args:
      name: the name, unique to the program.
      nbytes: size of the file.
      creator: the file is in use as long as this process lives.
      kind: what will be in it.

    Raises:
      ConfigError: there is a live file of this name, not enough memory, or no file can be made.
    """
    file = new_file(name, creator, kind)
    path = file.path
    path.unlink(missing_ok=True)  # see `new_file`
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, nbytes)
    except OSError:
        path.unlink()
        check_room(name, nbytes, kind)
        raise
    finally:
        os.close(descriptor)
    return file


def new_file(name: str, creator: Process, kind: Kind = TABLE) -> SharedFile:
    """Returns the unfinished file to be created.

    It may already exist, left by a process that died while creating it for the same creator.
    Raises ConfigError if the name is in use, or no file can be made.
    """
    quoted = urllib.parse.quote(name, safe="")
    if not quoted or len(quoted) > 200:
        raise ConfigError(
            f"a shared {kind.noun}'s name must have 1 to 200 characters; got {name!r}"
        )
    check_writable(name, kind)
    finished = f"{_PREFIX}{quoted}.{creator.label}{kind.suffix}"
    path = FOLDER / f"{finished}{_UNFINISHED}"
    for file in existing():
        if file.name == name and file.path != path and file.creator.lives():
            raise ConfigError(
                f"there is a {kind.noun} {name!r} already, of process {file.creator.pid}: "
                "its name must be the program's own"
            )
    return SharedFile(path, name, creator)


def publish(file: SharedFile) -> SharedFile:
    """Makes the file visible to others."""
    return file._replace(path=file.path.rename(file.final_path()))


def find(
    name: str, timeout: float, stop: threading.Event | None, kind: Kind = TABLE
) -> tuple[SharedFile, npt.NDArray[Any]]:
    """Waits for a live file of this name and kind; returns it and its bytes.

    Prints a line once it has waited for some seconds.

    Raises:
      Stopped: `stop` was set first.
      DeadlineExceeded: there was none within `timeout` seconds.
    """
    began, next_line = time.monotonic(), _FIRST_LINE_S
    while True:
        files = existing()
        for file in files:
            if file.name == name and file.is_finished(kind) and file.creator.lives():
                try:
                    return file, file.map()
                except FileNotFoundError:  # removed meanwhile
                    continue
        if stop is not None and stop.is_set():
            raise Stopped(f"stopped while waiting for {kind.noun} {name!r} in shared memory")
        waited = time.monotonic() - began
        if waited >= timeout:
            dead = [f"of dead process {f.creator.pid}" for f in files if f.name == name]
            others = sorted({repr(f.name) for f in files if f.name != name})
            raise DeadlineExceeded(
                f"no {kind.noun} {name!r} in {FOLDER} after {timeout:g} s; there are "
                f"{', '.join(dead + others) or 'none'}. Is its owner on this machine, and up?"
            )
        if waited >= next_line:
            next_line *= 2.0
            print(f"waiting for {kind.noun} {name!r} in {FOLDER} for {waited:.0f} s", flush=True)
        if stop is not None:
            stop.wait(_POLL)
        else:
            time.sleep(_POLL)
