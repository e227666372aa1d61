"""Whether a program runs in a folder, and which process that is."""

import fcntl
import os
from pathlib import Path

from distrl.launch.run_dir.folder import LOCK


def is_running(run_dir: Path) -> bool:
    """Returns whether a program on this machine, or on one that shares the folder, runs there."""
    try:
        descriptor = os.open(run_dir / LOCK, os.O_RDWR)
    except OSError:  # another user's, or no run folder
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def launcher_pid(run_dir: Path) -> int | None:
    """Returns the process that a running program was started as; None: not of this machine."""
    try:
        text = (run_dir / LOCK).read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() and Path(f"/proc/{text}").is_dir() else None
