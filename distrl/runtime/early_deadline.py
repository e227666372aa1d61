"""Deadlines that pass early because the machine's clock was set forward.

gRPC's deadlines are times of day: when the clock jumps, those of all calls in flight pass at once.
So do those of the following calls, for up to some seconds: Courier computes them from a copy of the
clock that it corrects only then.
"""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PAUSE_S = 0.05  # before a call is repeated
_EARLY = 0.9  # share of its deadline after which a call has not failed early


def passed_early(error: BaseException, began: float, timeout: float | None) -> bool:
    """Returns whether a call failed because of its deadline before that much time had passed.

    Args:
      error: what the call raised: an error of Courier or of Reverb.
      began: when it began, in seconds of the monotonic clock.
      timeout: its deadline in seconds; None: not known.
    """
    if timeout is None or time.monotonic() - began >= _EARLY * timeout:
        return False
    return is_deadline(error)


def is_deadline(error: BaseException) -> bool:
    """Returns whether a call failed because of its deadline. Args: error: what it raised."""
    if hasattr(error, "code") and not callable(error.code):  # None: the other node raised it
        return getattr(error.code, "name", "") == "DEADLINE_EXCEEDED"
    text = f"{type(error).__name__} {error}"[:100].lower().replace(" ", "")
    return "deadlineexceeded" in text


def call_again_if_early(call: Callable[[], T], timeout: float | None) -> T:
    """Returns what `call` returns; repeats it while its deadline passes early.

    Args:
      call: a call that may be made several times.
      timeout: its deadline in seconds; None: not known.

    Raises:
      Exception: what `call` raised: another failure, or its deadline when it had passed since the
        first call.
    """
    began = time.monotonic()
    while True:
        try:
            return call()
        except Exception as error:
            if not passed_early(error, began, timeout):
                raise
        time.sleep(PAUSE_S)
