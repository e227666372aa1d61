"""Waiting for a condition, with a deadline and a message; calls that wait in a thread."""

import threading
import time
from collections.abc import Callable


def until(
    condition: Callable[[], object],
    what: str | Callable[[], str],
    timeout: float = 15.0,
    interval: float = 0.02,
) -> float:
    """Waits until `condition()` is true and returns the seconds that took.

    Args:
      condition: called again and again.
      what: what is waited for; a function is called only for the message of a failure.
      timeout: seconds.
      interval: seconds between two calls.

    Raises:
      AssertionError: the condition is still false after `timeout`.
    """
    begin = time.monotonic()
    while not condition():
        waited = time.monotonic() - begin
        if waited >= timeout:
            raise AssertionError(
                f"waited {timeout:g} s for: {what if isinstance(what, str) else what()}"
            )
        time.sleep(interval)
    return time.monotonic() - begin


def in_thread(function: Callable[[], object]) -> tuple[threading.Thread, list[Exception]]:
    """Starts a thread that calls `function`; returns it and a list for the error it raises."""
    raised: list[Exception] = []

    def run() -> None:
        try:
            function()
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, raised
