"""Waiting for a condition with a deadline, ended early when the program stops."""

import logging
from collections.abc import Callable
from typing import Any, Protocol

from distrl.errors import DeadlineExceeded, Stopped
from distrl.runtime.heartbeat import main_thread_heartbeat
from distrl.runtime.patience import Deadline
from distrl.runtime.time_account import current_account

SLICE = 0.1
"""Seconds between two checks for whether the program is stopping."""


class Waitable(Protocol):
    """The part of a `threading.Condition` that `wait_until` needs."""

    def wait(self, timeout: float) -> Any:
        """Releases its lock, waits for a change or `timeout` seconds, and reacquires the lock."""


class StopEvent(Protocol):
    """The part of a `threading.Event` that `wait_until` needs."""

    def is_set(self) -> bool:
        """Returns whether the wait is to end."""


def wait_until(
    condition: Waitable,
    done: Callable[[], bool],
    *,
    stop: StopEvent | None,
    timeout: float | None,
    what: Callable[[], str],
    poll: Callable[[], None] | None = None,
) -> None:
    """Waits until `done()`.

    Args:
      condition: held by the caller; notified when `done` may have changed.
      done: called with `condition` held.
      stop: set when the program stops.
      timeout: seconds, which a `Patience` counts from the last sign of progress; None: no limit
        but `stop`.
      what: describes the wait, for messages.
      poll: called with `condition` held before each partial wait; may raise.

    Raises:
      Stopped: `stop` was set before `done()`.
      DeadlineExceeded: `timeout` seconds have passed.
    """
    if done():
        return
    deadline = Deadline(timeout)
    heartbeat, account = main_thread_heartbeat(), current_account()
    heartbeat.wait()
    state = account.wait()
    try:
        while not done():
            if stop is not None and stop.is_set():
                raise Stopped(what())
            left = deadline.left()
            if left <= 0:
                raise DeadlineExceeded(f"{what()}: {deadline.reason()}")
            if deadline.line_due() and not deadline.tell(what()):
                waited = deadline.waited()
                logging.getLogger(__name__).warning("%s: waiting for %.0f s so far", what(), waited)
            if poll is not None:
                poll()
            condition.wait(min(SLICE, left))
    finally:
        account.switch(state)
        heartbeat.tick()
