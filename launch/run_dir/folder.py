"""The folder that a program writes to: one program at a time."""

import contextlib
import datetime
import errno
import fcntl
import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path

from distrl.errors import ConfigError
from distrl.launch.supervision.launcher_process import (
    LOCK,
    LOCK_BYTES,
    LauncherProcess,
    is_running,
    lock_text,
    parse_lock,
)
from distrl.launch.supervision.result import RESULT_FILE
from distrl.runtime.files import make_private_folder, owner, read_json, write_json
from distrl.runtime.working_folder import absolute, shown

CONFIG = "config.json"
_LOCK_S = 10.0  # for the processes of a killed program to be gone
_POLL_S = 0.1


def open_program_folder(run_dir: str | None, program: str, command: list[str]) -> Path:
    """Opens the folder of a program that is no experiment, and locks it until this process ends.

    Args:
      run_dir: the folder; None: a new one in runs/.
      program: the program's name.
      command: the command line, for `config.json`.

    Raises:
      ConfigError: the folder cannot be used, or another program runs in it.
    """
    path = folder_of_flag(run_dir) if run_dir is not None else make_folder_in_runs(program)
    if make_folder(path) - {LOCK} and not has_config(path, "program"):
        raise ConfigError(
            f"--run_dir: {shown(path)} is not empty and not the folder of such a program; name "
            "a new folder"
        )
    with refusing(path):
        lock(path)
        (path / RESULT_FILE).unlink(missing_ok=True)  # the previous program's
        write_json(path / CONFIG, {"command": command, "program": program})
    return path


def folder_in_runs(name: str) -> Path:
    """Returns the path of a folder in runs/ that does not exist yet."""
    now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    return absolute("runs") / f"{now}-{name.replace('/', '-')}-{os.getpid()}"  # ALE/Pong-v5


def make_folder_in_runs(name: str) -> Path:
    """Makes a folder in runs/ that no other program has, and returns its path.

    Raises:
      ConfigError: it cannot be made.
    """
    first = path = folder_in_runs(name)
    try:
        first.parent.mkdir(parents=True, exist_ok=True)
        for number in itertools.count(2):
            try:
                path.mkdir(mode=0o700)
                break
            except FileExistsError:  # another thread's, of the same second
                path = first.with_name(f"{first.name}-{number}")
    except OSError as error:
        raise _no_folder(path, error) from error
    return path


@contextlib.contextmanager
def refusing(path: Path) -> Iterator[None]:
    """Raises ConfigError where the folder cannot be read or written: a full disk, say."""
    try:
        yield
    except OSError as error:
        file = f" ({error.filename})" if error.filename else ""
        raise ConfigError(f"--run_dir: {shown(path)}: {error.strerror or error}{file}") from error


def folder_of_flag(value: str, flag: str = "--run_dir") -> Path:
    """Returns the folder that a flag names, absolute. Raises ConfigError: it names none."""
    if not value:
        raise ConfigError(f"{flag}: empty; name a folder, or leave it out for a new one in runs/")
    return absolute(value)


def make_folder(path: Path) -> set[str]:
    """Makes the folder unless it exists; returns the names in it, without hidden files.

    Raises:
      ConfigError: it cannot be a folder.
    """
    try:
        make_private_folder(path)
        return {entry.name for entry in path.iterdir() if not entry.name.startswith(".")}
    except OSError as error:
        raise _no_folder(path, error) from error


def _no_folder(path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"--run_dir: {shown(path)} cannot be a folder: {error.strerror}")


def has_config(path: Path, *keys: str) -> bool:
    """Returns whether the folder's `config.json` has these keys."""
    try:
        config = read_json(path / CONFIG)
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and config.keys() >= {*keys}


def lock(path: Path) -> None:
    """Locks the folder until this process and its forks have ended.

    Raises:
      ConfigError: another program runs there, the folder is another user's, or its file system has
        no locks.
      OSError: the lock cannot be written for another reason.
    """
    try:
        descriptor = os.open(path / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    except PermissionError as error:
        file = path / LOCK if (path / LOCK).exists() else path
        now = ", whose program runs there" if is_running(path) else ""
        raise ConfigError(
            f"--run_dir: {shown(file)} is {owner(file)}'s{now}, and you may not write it; take a "
            "folder of your own"
        ) from error
    deadline = time.monotonic() + _LOCK_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            holder = parse_lock(os.pread(descriptor, LOCK_BYTES, 0))
            # The forks of a holder that was killed are gone in a moment.
            if (holder and holder.lives) or time.monotonic() >= deadline:
                os.close(descriptor)
                raise ConfigError(
                    f"--run_dir: {holder.name if holder else 'a process'} runs in {shown(path)}: "
                    "one program at a time"
                ) from None
            time.sleep(_POLL_S)
        except OSError as error:
            os.close(descriptor)
            if error.errno not in (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK):
                raise
            raise ConfigError(
                f"--run_dir: {shown(path)}: its file system has no locks (flock: "
                f"{error.strerror}), which keep two programs from one folder; take a folder on "
                "another one, or have it mounted with locks (Lustre: -o flock)"
            ) from error
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, lock_text(LauncherProcess.this()), 0)  # stays open until the process ends
