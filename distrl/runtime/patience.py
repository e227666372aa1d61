"""Waits for other nodes' work: they fail once no node works, however long that takes."""

import time
from collections.abc import Callable
from typing import Protocol

FIRST_LINE_S = 30.0
"""Seconds after which a wait is first reported; then at each doubling."""


class Workers(Protocol):
    """The nodes whose work a wait needs."""

    def signs(self) -> object:
        """Returns a value that changes whenever one of them makes progress."""

    def busy(self) -> bool:
        """Returns whether one of them works, or is being restarted.

        Nodes that hang are ended by the launcher's watchdog.
        """

    def present(self) -> bool:
        """Returns whether one of them runs, or is being restarted."""

    def describe(self) -> str:
        """Returns their state, for messages."""


class Patience(float):
    """A limit in seconds for a wait, counted from the last sign of progress.

    As a number it is the limit, for code that only knows plain limits.

    Attributes:
      workers: the nodes whose work the wait needs.
      tell: prints a line about the wait.
    """

    workers: Workers
    tell: Callable[[str], None]

    def __new__(
        cls, limit: float, workers: Workers, tell: Callable[[str], None] = print
    ) -> "Patience":
        """Args:
        limit: seconds.
        workers: see the class.
        tell: see the class.
        """
        patience = super().__new__(cls, limit)
        patience.workers, patience.tell = workers, tell
        return patience


class Unless(float):
    """A limit in seconds, plain or a `Patience`, for a wait that something else may end before.

    Attributes:
      limit: the limit.
      ended: returns whether the wait is over; called with the wait's lock held.
    """

    limit: float
    ended: Callable[[], bool]

    def __new__(cls, limit: float, ended: Callable[[], bool]) -> "Unless":
        """Args: see the class."""
        made = super().__new__(cls, limit)
        made.limit, made.ended = limit, ended
        return made


class Deadline:
    """The deadline of one wait, which a `Patience` defers, and an `Unless` may bring forward.

    Args:
      limit: seconds; None: no limit.
      clock: the monotonic clock.
    """

    def __init__(self, limit: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._ended: Callable[[], bool] | None = None
        if isinstance(limit, Unless):
            self._ended, limit = limit.ended, limit.limit
        self._limit = float("inf") if limit is None else float(limit)
        self._patience = limit if isinstance(limit, Patience) else None
        self._clock = clock
        self._began = self._last_sign = clock()
        self._signs = self._patience.workers.signs() if self._patience else None
        self._next_line = FIRST_LINE_S

    def waited(self) -> float:
        """Returns seconds since the wait began."""
        return self._clock() - self._began

    def left(self) -> float:
        """Returns seconds until the wait fails; 0 or less: now."""
        if self._ended is not None and self._ended():
            return 0.0
        if self._patience is not None:
            signs = self._patience.workers.signs()
            if signs != self._signs or self._patience.workers.busy():
                self._signs, self._last_sign = signs, self._clock()
        return self._last_sign + self._limit - self._clock()

    def line_due(self) -> bool:
        """Returns whether the wait is to be reported now."""
        if self.waited() < self._next_line:
            return False
        self._next_line *= 2.0
        return True

    def tell(self, wait: str) -> bool:
        """Reports the wait; returns False if that is left to the caller.

        Args:
          wait: what waits for what.
        """
        if self._patience is None:
            return False
        self._patience.tell(
            f"{wait}: waiting for {self.waited():.0f} s so far; {self._patience.workers.describe()}"
        )
        return True

    def reason(self) -> str:
        """Returns why the wait has failed."""
        if self._patience is None:
            return f"nothing in {self._limit:g} s"
        silent = self._clock() - self._last_sign
        return f"no sign of progress in {silent:.0f} s; {self._patience.workers.describe()}"


def may_end(limit: float | None) -> bool:
    """Returns whether a wait's `Workers`, if its limit has them, include one that is present."""
    if isinstance(limit, Unless):
        limit = limit.limit
    return isinstance(limit, Patience) and limit.workers.present()
