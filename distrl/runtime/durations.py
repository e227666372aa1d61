"""Checks of settings that are seconds, and the longest single wait."""

import math
import numbers
from typing import Any

from distrl.errors import ConfigError

LONGEST_WAIT_S = 2e6
"""Most seconds of a single wait, 23 days. `poll` and Courier take milliseconds as a C int, Python's
locks 292 years, and gRPC fails at once where a deadline is later than it can represent."""


def check_duration(
    name: str, value: Any, *, zero: bool = False, none: str = "", infinite: bool = True
) -> None:
    """Refuses a setting that is not a duration.

    Args:
      name: name of the setting, for the message.
      value: the setting.
      zero: whether it may be 0.
      none: what the message says about None, such as "or None"; "": it may not be None.
      infinite: whether it may be infinite.

    Raises:
      ConfigError: it is not a number of seconds, or too small, or infinite.
    """
    if value is None and none:
        return
    seconds = _as_float(value)
    # Written so that NaN is refused, too.
    if (seconds > 0 or (zero and seconds == 0)) and (infinite or seconds < math.inf):
        return
    least = "0 s or more" if zero else "more than 0 s"
    finite = " and finite" if seconds == math.inf else ""
    raise ConfigError(f"{name} must be {least}{finite}, {f'{none}; ' if none else ''}got {value}")


def _as_float(value: Any) -> float:
    """Returns a number as float; NaN if it is not a number, or beyond the range of floats."""
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.nan


def longest_wait(seconds: float) -> float:
    """Returns the seconds to give to a lock, a socket or a call that is to wait for `seconds`."""
    return min(seconds, LONGEST_WAIT_S)
