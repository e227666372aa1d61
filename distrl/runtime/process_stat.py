"""Reads what the kernel says about a process in `/proc/PID/stat`."""

import os
from pathlib import Path
from typing import NamedTuple

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class ProcessStat(NamedTuple):
    """A process, or one of its threads.

    Attributes:
      state: a letter, see proc(5): "T" or "t" stopped, "Z" or "X" ended.
      parent: id of its parent.
      cpu: seconds of CPU time that it has used.
      threads: number of its threads.
      start: when it started, in ticks since boot.
    """

    state: str
    parent: int
    cpu: float
    threads: int
    start: int


def process_stat(process: int | str, proc: Path = Path("/proc")) -> ProcessStat | None:
    """Returns the state of a process; None: there is none, or /proc hides it (`is_hidden`).

    Args:
      process: PID[/task/TID].
    """
    try:
        text = (proc / str(process) / "stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    fields = text[text.rindex(b")") + 2 :].split()  # from the third field: a name may have spaces
    cpu = (int(fields[11]) + int(fields[12])) / TICKS_PER_S
    return ProcessStat(fields[0].decode(), int(fields[1]), cpu, int(fields[17]), int(fields[19]))


def is_hidden(pid: int) -> bool:
    """Returns whether there is a process that /proc hides from this user (`hidepid`)."""
    if process_stat(pid) is not None:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
