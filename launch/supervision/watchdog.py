"""Tells nodes that hang from nodes that are busy or wait, and samples what they use."""

import contextlib
import dataclasses
import os
from pathlib import Path

from distrl.launch.supervision.restart_policy import Limits
from distrl.runtime.heartbeat import Heartbeat

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
IDLE = 0.05  # of a core: a node that uses less while it should work is idle


@dataclasses.dataclass
class Usage:
    """What a node's process uses; of a node that is a thread, only its processor time is its own.

    Attributes:
      cpu: seconds, of the node and of the processes that it started.
      stopped: by a signal, or by a tracer.
      resident: bytes in memory, shared ones included.
      shared: bytes of it that it shares with others.
    """

    cpu: float = 0.0
    stopped: bool = False
    resident: int = 0
    shared: int = 0


def usage(pid: int, thread: int | None = None) -> Usage | None:
    """Of a process with its descendants, or of one thread; None when it has ended."""
    if thread is not None:
        found = _stat(f"/proc/{pid}/task/{thread}/stat")
        return None if found is None else Usage(cpu=found[1])
    found = _stat(f"/proc/{pid}/stat")
    if found is None:
        return None
    state, cpu = found
    total = Usage(cpu, state in "Tt")
    with contextlib.suppress(OSError, ValueError):
        pages = Path(f"/proc/{pid}/statm").read_text().split()
        total.resident, total.shared = int(pages[1]) * _PAGE, int(pages[2]) * _PAGE
    for child in _children(pid):
        own = usage(child)
        if own is not None:
            total.cpu += own.cpu
            total.resident += own.resident - own.shared  # what it shares is counted already
    return total


def _stat(path: str) -> tuple[str, float] | None:
    """State and seconds of processor time."""
    try:
        text = Path(path).read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text[text.rindex(")") + 2 :].split()
    return fields[0], (int(fields[11]) + int(fields[12])) / _TICKS


def _children(pid: int) -> list[int]:
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread has ended
            found += [int(child) for child in path.read_text().split()]
    return found


def oom_kills() -> int:
    """Processes that the kernel has killed for want of memory, in our cgroup or on the machine."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/self/cgroup").read_text().splitlines()
        own = next((line[3:] for line in lines if line.startswith("0::")), "/")
        for path in (f"/sys/fs/cgroup{own}/memory.events", "/sys/fs/cgroup/memory.events"):
            with contextlib.suppress(OSError):
                return _count(Path(path).read_text())
    with contextlib.suppress(OSError):
        return _count(Path("/proc/vmstat").read_text())
    return 0


def _count(text: str) -> int:
    """The number behind `oom_kill` in a file of names and numbers."""
    return sum(int(n) for name, n in map(str.split, text.splitlines()) if name == "oom_kill")


class Watch:
    """Over one node: `look` from time to time."""

    def __init__(self, heartbeat: Heartbeat, limits: Limits):
        self._heartbeat = heartbeat
        self._limits = limits
        self._stuck: tuple[float, float] | None = None  # what `at_work` was, and the CPU time, then
        self._stopped = 0.0
        self._last_look: float | None = None

    def look(self, usage: Usage, now: float) -> str | None:
        """Why the node counts as hanging, or None.

        Args:
          usage: of the node, now.
          now: seconds of the monotonic clock.
        """
        limits, heartbeat = self._limits, self._heartbeat
        since = 0.0 if self._last_look is None else min(now - self._last_look, 2.0)
        self._last_look = now
        self._stopped = self._stopped + since if usage.stopped else 0.0
        if limits.stopped is not None and self._stopped > limits.stopped:
            return f"was stopped by a signal (SIGSTOP), {self._stopped:.0f} s ago"
        stuck = heartbeat.at_work()
        silent = heartbeat.silent()
        if silent is not None and silent > (stuck or 0.0):
            stuck = silent if silent > 2.0 else stuck  # it beats every second
        if stuck is None:
            self._stuck = None
            return None
        if self._stuck is None or stuck < self._stuck[0]:
            self._stuck = stuck, usage.cpu
            return None
        spent = stuck - self._stuck[0]
        cores = (usage.cpu - self._stuck[1]) / spent if spent > 0 else 1.0
        if cores < IDLE:
            if limits.idle is not None and stuck > limits.idle:
                return f"made no progress for {stuck:.0f} s, and uses no processor (it is blocked)"
        elif limits.busy is not None and stuck > limits.busy:
            return f"made no progress for {stuck:.0f} s, at {cores:.0%} of a core"
        return None
