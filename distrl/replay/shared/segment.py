"""Files of shared memory: their names, who made them, and what becomes of them.

A table is one file in `/dev/shm`, called `distrl.NAME.PID.START` after its creator, which may stand
for the process that made the file. The process id with the time at which it started names a process
for good, so that what a dead creator left is told from what is in use. A table elsewhere (of a
Reverb server) has a small file beside them, `distrl.NAME.PID.START.address`, which says where.
"""

import contextlib
import json
import mmap
import os
import threading
import time
import urllib.parse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from distrl.errors import ConfigError, DeadlineExceeded, Stopped

FOLDER = Path("/dev/shm")
_PREFIX = "distrl."
_UNFINISHED = ".new"  # after the name, while the file is being made
_ADDRESS = ".address"  # after the name of a file that says where a table is
_POLL = 0.02  # seconds between looks for a file: nobody can tell us


class Process(NamedTuple):
    """A process, told from others that had or will have its id."""

    pid: int
    start: int  # clock ticks after boot

    @classmethod
    def this(cls) -> "Process":
        pid = os.getpid()
        start = _start(pid)
        assert start is not None
        return cls(pid, start)

    @classmethod
    def parent(cls) -> "Process":
        """The process that started this one."""
        pid = os.getppid()
        start = _start(pid)
        if start is None:  # it has just died, and we follow
            raise Stopped(f"process {pid}, which started this one, has ended")
        return cls(pid, start)

    def lives(self) -> bool:
        """False when it has ended, with all its threads."""
        return _start(self.pid) == self.start


def _start(pid: int) -> int | None:
    """When the process started; None: there is no such process, or it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text[text.rindex(b")") + 2 :].split()  # from the third of proc(5) on
    # Dead, unburied; while it has other threads they may still run for a moment.
    if fields[0] in (b"Z", b"X") and int(fields[17]) <= 1:
        return None
    return int(fields[19])


class SharedFile(NamedTuple):
    """A table's file, or that of its address: where it is and who made it."""

    path: Path
    name: str
    creator: Process

    @property
    def is_table(self) -> bool:
        """False for an address, and for a table that is being made."""
        return self.path.suffix not in (_UNFINISHED, _ADDRESS)

    @property
    def is_address(self) -> bool:
        """Whether it says where a table is."""
        return self.path.suffix == _ADDRESS

    def about(self) -> dict[str, Any]:
        """What `announced` said, of an address. Raises FileNotFoundError when it is gone."""
        return json.loads(self.path.read_text())

    @classmethod
    def parse(cls, path: Path) -> "SharedFile | None":
        """From the path; None where it is not one of ours."""
        text = path.name.removesuffix(_UNFINISHED).removesuffix(_ADDRESS)
        parts = text.removeprefix(_PREFIX).rsplit(".", 2)
        if not text.startswith(_PREFIX) or len(parts) != 3:
            return None
        name, pid, start = parts
        if not (pid.isdecimal() and start.isdecimal()):
            return None
        return cls(path, urllib.parse.unquote(name), Process(int(pid), int(start)))

    def map(self) -> np.ndarray:
        """Its bytes, uint8, shared by all who map it; for as long as the array is held."""
        with open(self.path, "r+b") as file:
            return np.frombuffer(mmap.mmap(file.fileno(), 0), np.uint8)


def existing() -> list[SharedFile]:
    """Every file of this user's tables and addresses, those of dead creators too, and unfinished
    ones.
    """
    found = []
    for path in FOLDER.glob(_PREFIX + "*"):
        file = SharedFile.parse(path)
        try:
            if file is not None and path.stat().st_uid == os.getuid():
                found.append(file)
        except FileNotFoundError:  # removed while we look
            continue
    return found


def exists(name: str) -> bool:
    """Whether there is a table of this name in shared memory, made and in use."""
    return any(f.name == name and f.is_table and f.creator.lives() for f in existing())


def sweep(of_this_process: bool = False) -> list[str]:
    """Removes what dead creators left; gives the names of their tables.

    Args:
      of_this_process: also what this process made; for one that ends without cleaning up.
    """
    removed = []
    for file in existing():
        if not file.creator.lives() or (of_this_process and file.creator == Process.this()):
            file.path.unlink(missing_ok=True)
            removed.append(file.name)
    return removed


def check_room(name: str, nbytes: int) -> None:
    """Raises ConfigError where there is not enough memory for a file of `nbytes`."""
    folder = os.statvfs(FOLDER)
    free = folder.f_bavail * folder.f_frsize
    if nbytes > free:
        raise ConfigError(
            f"table {name!r} needs {nbytes / 1e9:.2f} GB of {FOLDER}, which has {free / 1e9:.2f} "
            "GB left: take a smaller replay.max_size, give it more memory, or take "
            "replay.backend=reverb"
        )


def create(name: str, nbytes: int, creator: Process) -> SharedFile:
    """A file of `nbytes` zeros that nobody else finds until `publish`.

    The memory is taken now: later there would be no way to say that there is none. It is in use as
    long as `creator` lives.

    Raises:
      ConfigError: there is a live table of this name, or not enough memory.
    """
    file = _new(name, creator)
    path = file.path
    path.unlink(missing_ok=True)  # of one that died while it made it, for the same creator
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, nbytes)
    except OSError:
        path.unlink()
        check_room(name, nbytes)
        raise
    finally:
        os.close(descriptor)
    return file


def _new(name: str, creator: Process) -> SharedFile:
    """A file that is to be made; raises ConfigError where the name is in use."""
    quoted = urllib.parse.quote(name, safe="")
    if not quoted or len(quoted) > 200:
        raise ConfigError(f"a shared table's name must have 1 to 200 letters; got {name!r}")
    for file in existing():
        if file.name == name and file.creator.lives():
            raise ConfigError(
                f"there is a table {name!r} already, of process {file.creator.pid}: "
                "its name must be the program's own"
            )
    path = FOLDER / f"{_PREFIX}{quoted}.{creator.pid}.{creator.start}{_UNFINISHED}"
    return SharedFile(path, name, creator)


@contextlib.contextmanager
def announced(name: str, about: Mapping[str, Any]) -> Iterator[None]:
    """Tells others of a table that is not in shared memory, until the end, or this process's.

    Args:
      name: the table's, which is the program's own.
      about: for JSON: what `SharedFile.about` gives.

    Raises:
      ConfigError: the name is in use.
    """
    sweep()
    file = _new(name, Process.this())
    path = Path(str(file.path).removesuffix(_UNFINISHED) + _ADDRESS)
    try:
        file.path.write_text(json.dumps(about))
        file.path.rename(path)
        yield
    finally:
        file.path.unlink(missing_ok=True)
        path.unlink(missing_ok=True)


def publish(file: SharedFile) -> SharedFile:
    """Lets others find it."""
    return file._replace(path=file.path.rename(str(file.path).removesuffix(_UNFINISHED)))


def find(name: str, timeout: float, stop: threading.Event | None) -> tuple[SharedFile, np.ndarray]:
    """The live table of this name, and its bytes; waits until there is one.

    Raises:
      Stopped: `stop` was set first.
      DeadlineExceeded: there is none after `timeout` seconds.
    """
    began = time.monotonic()
    while True:
        there = existing()
        for file in there:
            if file.name == name and file.is_table and file.creator.lives():
                try:
                    return file, file.map()
                except FileNotFoundError:  # removed meanwhile
                    continue
        if stop is not None and stop.is_set():
            raise Stopped(f"table {name!r} in shared memory is waited for")
        if time.monotonic() - began >= timeout:
            dead = [f"of dead process {f.creator.pid}" for f in there if f.name == name]
            others = sorted({repr(f.name) for f in there if f.name != name})
            raise DeadlineExceeded(
                f"no table {name!r} in {FOLDER} after {timeout:g} s; there are "
                f"{', '.join(dead + others) or 'none'}. Is its owner on this machine, and up?"
            )
        if stop is not None:
            stop.wait(_POLL)
        else:
            time.sleep(_POLL)
