"""One core for threads that take turns, while this is faster."""

import os
import time

from distrl.inference.same_core import SameCore
from distrl.runtime.host_resources import keep_to_cores


class TurnsCore:
    """A context that keeps the calling thread on one core with others that it takes turns with.

    They only ever wait for each other, and waking another core may cost more than a step of a cheap
    environment, or than the inference of a small network. Both ways are tried, and the time spent
    in the context decides. Outside of it, the thread and what it starts may use any core.
    """

    def __init__(self, others: set[int]):
        """Args: others: native ids of the threads that step environments, or compute.

        Threads that have ended are ignored: others may start and end while environments are made.
        """
        self._threads = others
        self._allowed = os.sched_getaffinity(0)
        self._core: int | None = None
        self._seconds, self._since, self._is_within = 0.0, 0.0, False
        self._same_core = SameCore(self._seconds_within, self._move)

    def __enter__(self) -> None:
        """Moves the calling thread to the core, if one is in use."""
        self._since, self._is_within = time.monotonic(), True
        if self._core is not None:
            os.sched_setaffinity(0, {self._core})

    def count(self) -> None:
        """Counts what the threads are there for: a step of the actor, or an update."""
        self._same_core.count()

    def __exit__(self, *error: object) -> None:
        """Lets the calling thread use all of its cores again."""
        self._seconds += time.monotonic() - self._since
        self._is_within = False
        if self._core is not None:
            os.sched_setaffinity(0, self._allowed)

    def _seconds_within(self) -> float:
        return self._seconds + (time.monotonic() - self._since if self._is_within else 0.0)

    def _move(self, core: int | None) -> None:
        self._core = core
        for thread in (0, *self._threads):
            keep_to_cores(thread, self._allowed if core is None else {core})
