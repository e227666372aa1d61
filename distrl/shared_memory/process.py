"""Identifies processes, to tell a live process from a dead one whose id was reused."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from distrl.errors import Stopped
from distrl.runtime.process_stat import process_stat


class Process(NamedTuple):
    """A process, distinct from others that have had or will have its id."""

    pid: int
    start: int  # clock ticks after boot

    @classmethod
    def this(cls) -> "Process":
        """Returns this process."""
        process = cls.of(os.getpid())
        assert process is not None
        return process

    @classmethod
    def of(cls, pid: int) -> "Process | None":
        """Returns the process that has an id now; None if there is none, or it has ended."""
        start = _start(pid)
        return None if start is None else cls(pid, start)

    @classmethod
    def parent(cls) -> "Process":
        """Returns the process that started this one."""
        process = cls.of(pid := os.getppid())
        if process is None:  # it has just died, and this process will follow
            raise Stopped(f"process {pid}, which started this one, has ended")
        return process

    @property
    def label(self) -> str:
        """Returns "NAMESPACE.PID.START", for names of files that other processes may see."""
        return f"{pid_namespace()}.{self.pid}.{self.start}"

    @classmethod
    def parse(cls, label: Sequence[str]) -> "Process | None":
        """Returns the process of a label's parts.

        None: they are not a label, or one from another PID namespace, such as that of a container
        that shares the folder. Here it cannot be known whether such a process lives.
        """
        if len(label) != 3 or not all(part.isdecimal() for part in label):
            return None
        namespace, pid, start = map(int, label)
        return cls(pid, start) if namespace == pid_namespace() else None

    def lives(self) -> bool:
        """Returns False once the process has ended, with all its threads."""
        return _start(self.pid) == self.start


def pid_namespace() -> int:
    """Returns the number of this process's PID namespace, in which alone its ids have meaning."""
    return os.stat("/proc/self/ns/pid").st_ino


def boot_id() -> str:
    """Returns the kernel's name for this boot of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _start(pid: int) -> int | None:
    """Returns the start time of a process; None if there is no such process, or it has ended."""
    stat = process_stat(pid)
    # A zombie; while it has other threads they may still run for a moment.
    if stat is None or (stat.state in "ZX" and stat.threads <= 1):
        return None
    return stat.start
