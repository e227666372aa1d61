"""A wait that has an end: something happens, the program stops, or the time is over."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from distrl.errors import DeadlineExceeded, Stopped
from distrl.runtime.heartbeat import main_thread_heartbeat

SLICE = 0.1
"""Seconds after which a wait looks again whether the program stops."""

_PATIENCE = 30.0  # seconds after which a wait is worth a line in the log


class Waitable(Protocol):
    """What `wait_until` needs of a `threading.Condition`."""

    def wait(self, timeout: float) -> Any:
        """Lets go of its lock, waits for a change, or for `timeout` seconds, and has it again."""


def wait_until(
    condition: Waitable,
    done: Callable[[], bool],
    *,
    stop: threading.Event | None,
    timeout: float | None,
    what: Callable[[], str],
    turn: Callable[[], None] | None = None,
) -> None:
    """Waits, holding `condition`, until `done()`.

    Args:
      condition: held by the caller; notified when `done` may have changed.
      done: asked with `condition` held.
      stop: set when the program stops.
      timeout: seconds; None: no limit but `stop`.
      what: who waits for what, for the messages.
      turn: called, holding `condition`, each time that the wait looks around; may raise.

    Raises:
      Stopped: `stop` was set, and it is not `done`.
      DeadlineExceeded: the time is over.
    """
    if done():
        return
    began = time.monotonic()
    told = False
    heartbeat = main_thread_heartbeat()
    while not done():
        heartbeat.tick()  # it has a limit of its own, and hears what happens
        if stop is not None and stop.is_set():
            raise Stopped(what())
        waited = time.monotonic() - began
        if timeout is not None and waited >= timeout:
            raise DeadlineExceeded(f"{what()}: nothing in {timeout:g} s")
        if waited > _PATIENCE and not told:
            told = True
            logging.getLogger(__name__).warning("%s: waiting for %.0f s", what(), waited)
        if turn is not None:
            turn()
        condition.wait(SLICE if timeout is None else min(SLICE, timeout - waited))
