"""Keeps a client and its service on one core while that makes them faster.

They take turns, and waking a thread on another core, which sleeps, may take as long as inference on
small observations: a tenth of a millisecond there and back on a virtual machine.
"""

import os
import time
from collections.abc import Callable

from distrl.shared_memory.libc import QUICK

_TRIAL_S = 0.2
_TRIALS = 10  # alternately on any core and on one
_KEEP_S = 30.0  # how long the better one is kept; then both are tried again
_CALLS = 64  # between two readings of the clock
_BETTER = 1.05  # one core must allow this many times the calls; less may be chance


class CoreSetter:
    """Keeps the calling thread on one core, or on those it could use when this was made."""

    def __init__(self) -> None:
        self._allowed = os.sched_getaffinity(0)
        self._core: int | None = None

    def move(self, core: int | None) -> None:
        """Moves the thread. Args: core: None: any. A core that it may not use is ignored."""
        if core != self._core and (core is None or core in self._allowed):
            os.sched_setaffinity(0, self._allowed if core is None else {core})
            self._core = core


class SameCore:
    """Tries out, again and again, whether calls are faster on one core; for one thread.

    It keeps the calling thread on that core; the service should follow to what `count` returns.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        move: Callable[[int | None], None] | None = None,
    ):
        """Args: clock: returns seconds. move: like `CoreSetter.move`."""
        self._clock, self._move = clock, move or CoreSetter().move
        self._core: int | None = None
        self._rates: list[float] = []  # calls per second: on any core, on one, and so on
        self._begin(_TRIAL_S)

    def _begin(self, seconds: float) -> None:
        self._calls, self._since, self._seconds = 0, self._clock(), seconds

    def count(self) -> int | None:
        """Counts a call; returns the core for both, None: any."""
        self._calls += 1
        if self._calls % _CALLS == 0:
            passed = self._clock() - self._since
            if passed >= self._seconds:
                self._next(self._calls / passed)
        return self._core

    def _next(self, rate: float) -> None:
        """Ends a trial, or the time after trials. Args: rate: calls per second in it."""
        seconds, shares = _TRIAL_S, False
        if self._seconds == _TRIAL_S:
            self._rates.append(rate)
            shares = len(self._rates) % 2 == 1
            if len(self._rates) == _TRIALS:
                seconds = _KEEP_S
                shares = sum(self._rates[1::2]) > _BETTER * sum(self._rates[::2])
                self._rates = []
        if shares != (self._core is not None):
            self._core = QUICK.sched_getcpu() if shares else None
            self._move(self._core)
        self._begin(seconds)
