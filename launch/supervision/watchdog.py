"""Finds hung nodes, and samples the resources that nodes use."""

import contextlib
import dataclasses
import os
from pathlib import Path

from distrl.launch.supervision.restart_policy import HangLimits
from distrl.runtime.heartbeat import Heartbeat

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_IDLE_CORES = 0.05  # a working node that uses less CPU is idle
_SILENCE_S = 2.0  # without a heartbeat, which a node sends every second
_MAX_CHECK_GAP_S = 2.0  # counted between two checks: the launcher may have been stopped itself


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


def usage(pid: int, thread: int | None = None) -> Usage | None:
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
        child_usage = usage(child)
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


class HangDetector:
    """Decides whether one node is hung; to be asked about once a second.

    Args:
      heartbeat: the node's.
      limits: how long it may hang.
    """

    def __init__(self, heartbeat: Heartbeat, limits: HangLimits) -> None:
        self._heartbeat = heartbeat
        self._limits = limits
        self._baseline: tuple[float, float] | None = None  # seconds without progress, CPU seconds
        self._stopped_s = 0.0
        self._last_check: float | None = None

    def check(self, usage: Usage, now: float) -> str | None:
        """Returns why the node is considered hung, or None.

        Args:
          usage: the node's, now.
          now: seconds of the monotonic clock.
        """
        limits = self._limits
        if self._last_check is not None and usage.stopped:
            self._stopped_s += min(now - self._last_check, _MAX_CHECK_GAP_S)
        if not usage.stopped:
            self._stopped_s = 0.0
        self._last_check = now
        if limits.stopped is not None and self._stopped_s > limits.stopped:
            return f"was stopped by a signal (SIGSTOP), {self._stopped_s:.0f} s ago"
        stuck = self._seconds_stuck()
        if stuck is None:
            self._baseline = None
            return None
        if self._baseline is None or stuck < self._baseline[0]:
            self._baseline = stuck, usage.cpu
            return None
        elapsed = stuck - self._baseline[0]
        cores = (usage.cpu - self._baseline[1]) / elapsed if elapsed > 0 else 1.0
        if cores < _IDLE_CORES:
            if limits.idle is not None and stuck > limits.idle:
                return f"made no progress for {stuck:.0f} s without using the CPU (it is blocked)"
        elif limits.busy is not None and stuck > limits.busy:
            return f"made no progress for {stuck:.0f} s, at {cores:.0%} of a core"
        return None

    def _seconds_stuck(self) -> float | None:
        """Returns the seconds without progress; None for a node that waits for others."""
        stuck, silent = self._heartbeat.at_work(), self._heartbeat.silent()
        if silent is not None and silent > max(stuck or 0.0, _SILENCE_S):
            return silent
        return stuck
