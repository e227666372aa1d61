"""The CPU time and memory that nodes use."""

import contextlib
import dataclasses
import os
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
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
    if thread is not None:
        thread_state = _state_and_cpu(f"/proc/{pid}/task/{thread}/stat")
        return None if thread_state is None else Usage(cpu=thread_state[1])
    process_state = _state_and_cpu(f"/proc/{pid}/stat")
    if process_state is None:
        return None
    state, cpu = process_state
    total = Usage(cpu, state in "Tt")
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


def _state_and_cpu(path: str) -> tuple[str, float] | None:
    """Returns the state's letter and the CPU seconds of a `stat` file."""
    try:
        text = Path(path).read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text[text.rindex(")") + 2 :].split()
    return fields[0], (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def _children(pid: int) -> list[int]:
    children = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread has ended
            children += [int(child) for child in path.read_text().split()]
    return children
