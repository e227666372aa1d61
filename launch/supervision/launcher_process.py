"""The process that runs in a folder, as the folder's lock names it to this host and to others."""

import fcntl
import json
import os
import socket
from pathlib import Path
from typing import Any, NamedTuple

from distrl.errors import ConfigError
from distrl.runtime.files import owner
from distrl.runtime.process_exit import command_pid
from distrl.runtime.process_stat import is_hidden
from distrl.shared_memory.process import Process, boot_id, pid_namespace

LOCK, LOCK_BYTES = "lock", 1000  # a folder's file, and most bytes in it


class LauncherProcess(NamedTuple):
    """The process that a program was started as, which the user may signal.

    Process ids have meaning in their namespace only: hosts that share a run folder have others.

    Attributes:
      pid: its id.
      start: see `Process`; None: not known, as for programs of an older version.
      host: the name of its host; "": not known.
      boot: the kernel's id of its host's boot; "": not known.
      namespace: number of its PID namespace.
    """

    pid: int
    start: int | None = None
    host: str = ""
    boot: str = ""
    namespace: int = 0

    @classmethod
    def this(cls) -> "LauncherProcess":
        """Returns the process that this program was started as."""
        process = Process.of(command_pid())
        start = None if process is None else process.start
        return cls(command_pid(), start, socket.gethostname(), boot_id(), pid_namespace())

    @classmethod
    def parsed(cls, data: Any) -> "LauncherProcess | None":
        """Returns the one of `_asdict()`, or of an older version's pid; None: data is neither."""
        match data:
            case int(pid):
                return cls(pid)
            case {"pid": int(), "start": _, "host": str(), "boot": str(), "namespace": int()}:
                return cls(**{name: data[name] for name in cls._fields})
        return None

    @property
    def is_elsewhere(self) -> bool:
        """Whether its id is another host's or container's."""
        return bool(self.boot) and (self.boot, self.namespace) != (boot_id(), pid_namespace())

    @property
    def lives(self) -> bool:
        """Whether it is a process of this host that has not ended."""
        if self.is_elsewhere:
            return False
        process = Process.of(self.pid)
        if process is None:
            return is_hidden(self.pid)  # another user's; its start is not known
        return self.start in (None, process.start)

    def is_same(self, other: "LauncherProcess") -> bool:
        """Returns whether this is the other process, as far as both are known."""
        return all(one == two for one, two in zip(self, other) if one and two)

    @property
    def name(self) -> str:
        """Returns "process 7 on host h1", for messages."""
        return f"process {self.pid}{f' on host {self.host}' if self.host else ''}"


def is_running(run_dir: Path) -> bool:
    """Returns whether a program on this machine, or on one that shares the folder, runs there."""
    return bool(is_locked(run_dir))


def is_locked(run_dir: Path) -> bool | None:
    """Returns whether a program holds the folder's lock; None: no lock, or none to read."""
    try:
        descriptor = os.open(run_dir / LOCK, os.O_RDONLY)  # enough, also of another user's
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks, which a run may have been copied to
        return None
    finally:
        os.close(descriptor)
    return False


def launcher_of(run_dir: Path) -> LauncherProcess | None:
    """Returns the process that the last program in a folder was started as; None: not known."""
    try:
        return parse_lock((run_dir / LOCK).read_bytes())
    except OSError:
        return None


def lock_text(launcher: LauncherProcess) -> bytes:
    """Returns a lock's text."""
    return json.dumps(launcher._asdict()).encode() + b"\n"


def parse_lock(text: bytes) -> LauncherProcess | None:
    """Returns what a lock names; None: nothing yet."""
    try:
        return LauncherProcess.parsed(json.loads(text))
    except ValueError:
        return None


def local_launcher(run_dir: Path, command: str) -> LauncherProcess:
    """Returns the process that a running program was started as, which this user may signal.

    Args:
      run_dir: its folder.
      command: what needs it, for messages.

    Raises:
      ConfigError: nothing runs there, or not on this host, or it is another user's.
    """
    if not is_running(run_dir):
        raise ConfigError(f"{command}: {run_dir} is not running")
    launcher = launcher_of(run_dir)
    elsewhere = f"{command}: the program in {run_dir} {_where_else(launcher, command)}"
    if launcher is None or not launcher.lives:
        raise ConfigError(elsewhere)
    try:
        os.kill(launcher.pid, 0)
    except ProcessLookupError:  # it has ended since
        raise ConfigError(elsewhere) from None
    except PermissionError:
        try:
            user = who = owner(Path(f"/proc/{launcher.pid}"))
        except FileNotFoundError:
            user, who = "another user", "that user"
        raise ConfigError(
            f"{command}: the program in {run_dir} is {user}'s ({launcher.name}); only {who} or "
            f"root can {command} it"
        ) from None
    return launcher


def _where_else(launcher: LauncherProcess | None, command: str) -> str:
    if launcher is None or not launcher.boot:  # an older version's: it is elsewhere, or has ended
        return f"runs on another machine; {command} it there"
    if launcher.is_elsewhere:
        return f"runs as {launcher.name}; {command} it there"
    return f"was {launcher.name}, which has ended; its nodes are ending, too"
