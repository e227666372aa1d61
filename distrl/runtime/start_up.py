"""Reports what a process spends its time on until its first learner step, in one line of the log.

The parts of a process call `mark` when they are done; JAX itself reports what it compiles.
"""

import os
import threading
import time
from pathlib import Path
from typing import Any

from distrl.runtime.process_stat import TICKS_PER_S, process_stat

_CACHED = "/jax/compilation_cache/cache_hits"
_PHASES = {
    "/jax/core/compile/jaxpr_trace_duration": "tracing",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "tracing",
    "/jax/core/compile/backend_compile_duration": "compilation",
}


class StartUp:
    """The start-up of this process: seconds by name, in the order in which they came.

    Attributes:
      is_over: whether the line was taken; then nothing more is counted.
    """

    def __init__(self, before: float):
        """Args: before: seconds that have passed already."""
        self.is_over = False
        self._began = time.monotonic() - before
        self._last = self._began
        self._phases: dict[str, float] = {}
        self._of_jax = dict.fromkeys(_PHASES.values(), 0.0)
        self._compiled = self._cached = 0
        self._lock = threading.Lock()  # JAX compiles in several threads

    def mark(self, phase: str) -> None:
        """Counts the time since the last mark as `phase`."""
        if not self.is_over:
            now = time.monotonic()
            self._phases[phase] = self._phases.get(phase, 0.0) + now - self._last
            self._last = now

    def line(self, phase: str) -> str:
        """Marks the last phase, and returns the line."""
        self.mark(phase)
        self.is_over = True
        phases = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in self._phases.items())
        of_jax = " and ".join(f"{name} {seconds:.1f} s" for name, seconds in self._of_jax.items())
        return (
            f"start-up: {self._last - self._began:.1f} s: {phases}; in these, {of_jax} of "
            f"{self._compiled} functions, {self._cached} of them from the cache"
        )

    def on_duration(self, event: str, seconds: float) -> None:
        """Counts what JAX reports. A function within another is traced in its time."""
        if self.is_over or event not in _PHASES:
            return
        with self._lock:
            self._of_jax[_PHASES[event]] += max(0.0, seconds)  # JAX's clock may be set back
            self._compiled += _PHASES[event] == "compilation"

    def on_event(self, event: str) -> None:
        """Counts a function that was found in the cache."""
        if not self.is_over and event == _CACHED:
            with self._lock:
                self._cached += 1


_current: StartUp | None = None


def begin(phase: str, pid: int | None = None) -> StartUp:
    """Begins the record of this process.

    Args:
      phase: name for the time so far.
      pid: the process whose start counts, such as the launcher; None: this one.
    """
    global _current
    listens = _current is not None
    _current = start_up = StartUp(seconds_since_start(pid or os.getpid()))
    start_up.mark(phase)
    if not listens:
        from jax import monitoring

        monitoring.register_event_duration_secs_listener(_on_duration)
        monitoring.register_event_listener(_on_event)
    return start_up


def _on_duration(event: str, duration_secs: float, **_: Any) -> None:
    if _current is not None:
        _current.on_duration(event, duration_secs)


def _on_event(event: str, **_: Any) -> None:
    if _current is not None:
        _current.on_event(event)


def mark(phase: str) -> None:
    """Counts the time since the last mark as `phase`, where there is a record."""
    if _current is not None:
        _current.mark(phase)


def take_line(phase: str) -> str | None:
    """Ends the record and returns its line; None: there is none, or its line was taken."""
    if _current is None or _current.is_over:
        return None
    return _current.line(phase)


def seconds_since_start(pid: int, proc: Path = Path("/proc")) -> float:
    """Returns how long a process has existed; 0 if the system does not say."""
    try:
        stat = process_stat(pid, proc)
        uptime = float((proc / "uptime").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 0.0
    return 0.0 if stat is None else max(0.0, uptime - stat.start / TICKS_PER_S)
