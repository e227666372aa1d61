"""One core for a thread that acts and that of its environments, while this is faster."""

import os
import time

from distrl.inference.same_core import SameCore
from distrl.runtime.host_resources import keep_to_cores


def threads() -> set[int]:
    """Returns the native ids of this process's threads."""
    return set(map(int, os.listdir("/proc/self/task")))


class ActingCore:
    """Keeps the calling thread on the core of its environments' thread while it acts.

    The two only ever wait for each other, and waking another core may cost more than a step of a
    cheap environment. What is faster is tried out, by the time that acting takes. While the thread
    learns it may use any core.
    """

    def __init__(self, environment_threads: set[int]):
        """Args: environment_threads: native ids of the threads that step the environments.

        Threads that have ended are ignored: others may start and end while environments are made.
        """
        self._threads = environment_threads
        self._allowed = os.sched_getaffinity(0)
        self._core: int | None = None
        self._seconds, self._since = 0.0, 0.0
        self._same_core = SameCore(self._acting_seconds, self._move)

    def begin(self) -> None:
        """Begins to act."""
        self._since = time.monotonic()
        if self._core is not None:
            os.sched_setaffinity(0, {self._core})

    def count(self) -> None:
        """Counts a step of the actor."""
        self._same_core.count()

    def end(self) -> None:
        """Stops acting."""
        self._seconds += time.monotonic() - self._since
        if self._core is not None:
            os.sched_setaffinity(0, self._allowed)

    def _acting_seconds(self) -> float:
        if not self._since:  # before the first step
            return 0.0
        return self._seconds + time.monotonic() - self._since

    def _move(self, core: int | None) -> None:
        self._core = core
        for thread in (0, *self._threads):
            keep_to_cores(thread, self._allowed if core is None else {core})
