"""The CPU time and memory that nodes use."""

import contextlib
import dataclasses
import os
from pathlib import Path

from distrl.runtime.process_stat import process_stat

_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclasses.dataclass
class Usage:
    """The resources that a node uses. For a node that is a thread, only `cpu` is set.

    Attributes:
      cpu: CPU seconds of the node's process and of its descendants.
      stopped: whether the process is stopped by a signal or by a tracer.
      resident: bytes in memory, including shared ones.
      shared: bytes of it that are shared with other processes.
    """

    cpu: float = 0.0
    stopped: bool = False
    resident: int = 0
    shared: int = 0


def process_usage(pid: int, thread: int | None = None) -> Usage | None:
    """Returns the usage of a process and its descendants, or of one thread; None if it has ended.

    Args:
      pid: the process.
      thread: the native id of one of its threads.
    """
    stat = process_stat(pid if thread is None else f"{pid}/task/{thread}")
    if stat is None or thread is not None:
        return None if stat is None else Usage(stat.cpu)
    total = Usage(stat.cpu, stat.state in "Tt")
    with contextlib.suppress(OSError, ValueError):
        pages = Path(f"/proc/{pid}/statm").read_text().split()
        total.resident, total.shared = int(pages[1]) * _PAGE, int(pages[2]) * _PAGE
    for child in _children(pid):
        child_usage = process_usage(child)
        if child_usage is not None:
            total.cpu += child_usage.cpu
            # What it shares is counted already.
            total.resident += child_usage.resident - child_usage.shared
    return total


def _children(pid: int) -> list[int]:
    children = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread has ended
            children += [int(child) for child in path.read_text().split()]
    return children
