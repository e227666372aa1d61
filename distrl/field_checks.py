"""Checks of the fields of settings. All raise ConfigError, which says what would be right.

Settings of agents and transforms are refused as "agent.x: expected ..., got ...", numbers of an
experiment's parts as "actors.x must be ...; got ...", for which `check_whole` and `is_number` are.
"""

import dataclasses
import difflib
import math
import sys
from collections.abc import Callable, Collection, Iterable
from typing import Any

import numpy as np

from distrl.errors import ConfigError


def is_whole(value: Any, least: int = 1) -> bool:
    """Whether a value is an int (and not a bool) of at least `least`."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def is_number(value: Any, infinite: bool = False) -> bool:
    """Whether a value is an int or float, not a bool or NaN; finite unless `infinite`."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return False
    try:
        number = float(value)
    except OverflowError:  # an integer beyond the range of floats
        return False
    return not math.isnan(number) if infinite else math.isfinite(number)


def plain_numbers(settings: Any) -> None:
    """Replaces NumPy's numbers with Python's, which is what files and flags contain.

    Those in tuples, lists and dicts are replaced, too.

    Args:
      settings: a dataclass, frozen or not, which is being made.
    """
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if isinstance(value, np.generic) or type(value) in (tuple, list, dict):
            object.__setattr__(settings, field.name, _with_plain_numbers(value))


def _with_plain_numbers(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if type(value) in (tuple, list):  # a NamedTuple stays one
        return type(value)(map(_with_plain_numbers, value))
    if type(value) is dict:
        return {key: _with_plain_numbers(part) for key, part in value.items()}
    return value


def check_whole(
    settings: Any, field: str, prefix: str, least: int = 1, *, none: bool = False, unit: str = ""
) -> None:
    """Refuses a part's field that is not a whole number of `least` or more.

    Args:
      settings: a dataclass.
      field: name of the field.
      prefix: prefix of the field's name in the message.
      least: the least number.
      none: whether it may be None.
      unit: what is counted, for the message: "of learner steps".
    """
    value = getattr(settings, field)
    if is_whole(value, least) or (none and value is None):
        return
    number = f"a whole number {unit}".strip()
    more = f"{least} or more{', or None' if none else ''}"
    raise ConfigError(f"{prefix}.{field} must be {number}, {more}; got {value!r}")


def check_number(
    settings: Any, field: str, good: Callable[[float], bool], want: str, prefix: str = "agent"
) -> None:
    """Refuses a field that is not a finite number for which `good` holds.

    Args:
      settings: a dataclass.
      field: name of the field.
      good: whether a value is right.
      want: what is right, for the message: "expected a number `want`".
      prefix: prefix of the field's name in the message.
    """
    value = getattr(settings, field)
    if _is_traced(value):  # from `Tunable`, which has checked the first value
        return
    if not (is_number(value) and good(value)):
        raise ConfigError(f"{prefix}.{field}: expected a number {want}, got {value!r}")


def _is_traced(value: Any) -> bool:
    jax = sys.modules.get("jax")  # environments' worker processes do not import it
    return jax is not None and isinstance(value, jax.core.Tracer)


def check_positive_or_none(settings: Any, field: str) -> None:
    """Refuses a field that is neither None nor a number above 0; as `check_number`."""
    if getattr(settings, field) is not None:
        check_number(settings, field, lambda x: x > 0, "above 0, or None")


def check_flag(settings: Any, field: str, prefix: str = "agent") -> None:
    """Refuses a field that is not a bool; as `check_number`."""
    value = getattr(settings, field)
    if not isinstance(value, bool):
        raise ConfigError(f"{prefix}.{field}: expected True or False, got {value!r}")


def check_function(settings: Any, field: str, call: str, prefix: str = "agent") -> None:
    """Refuses a field that is neither None nor callable. Args: call: its arguments, as text."""
    value = getattr(settings, field)
    if value is not None and not callable(value):
        raise ConfigError(f"{prefix}.{field}: expected a function {call}, or None; got {value!r}")


def check_kind(settings: Any, field: str, kind: type, prefix: str = "agent") -> None:
    """Refuses a field that is not a `kind`; as `check_number`."""
    value = getattr(settings, field)
    if not isinstance(value, kind):
        article = "an" if kind.__name__[0] in "AEIOU" else "a"
        raise ConfigError(f"{prefix}.{field}: expected {article} {kind.__name__}, got {value!r}")


def check_count(settings: Any, field: str, prefix: str = "agent", least: int = 1) -> None:
    """Refuses a field that is not a whole number of `least` or more; as `check_number`."""
    value = getattr(settings, field)
    if not is_whole(value, least):
        raise ConfigError(
            f"{prefix}.{field}: expected a whole number of at least {least}, got {value!r}"
        )


def check_sizes(settings: Any, field: str, prefix: str = "agent") -> None:
    """Refuses a field that is not a tuple of whole numbers of 1 or more; as `check_names`."""
    value = getattr(settings, field)
    if isinstance(value, list):
        value = tuple(value)
        object.__setattr__(settings, field, value)
    if not (isinstance(value, tuple) and all(map(is_whole, value))):
        raise ConfigError(f"{prefix}.{field}: expected a tuple of positive integers, got {value!r}")


def check_names(settings: Any, field: str, prefix: str = "agent") -> None:
    """Refuses a field that is not a tuple of strings; a list becomes one; as `check_number`."""
    value = getattr(settings, field)
    if isinstance(value, list):
        value = tuple(value)
        object.__setattr__(settings, field, value)
    if not (isinstance(value, tuple) and all(isinstance(name, str) and name for name in value)):
        raise ConfigError(f"{prefix}.{field}: expected a tuple of names, got {value!r}")


def check_choice(
    settings: Any, field: str, choices: tuple[str, ...], prefix: str = "agent"
) -> None:
    """Refuses a field that is none of `choices`; as `check_number`. No prefix if it is ""."""
    value = getattr(settings, field)
    if value not in choices:
        raise ConfigError(
            f"{prefix}{prefix and '.'}{field}: expected one of {', '.join(choices)}; "
            f"got {value!r}{did_you_mean(value, choices)}"
        )


def did_you_mean(name: object, names: Iterable[str], most: int = 1, cutoff: float = 0.6) -> str:
    """Returns the end of a message about an unknown name: similar ones, or "" if none is.

    Args:
      name: what was given.
      names: the names that there are.
      most: how many similar ones to give.
      cutoff: how similar they must be, from 0 to 1; see `difflib.get_close_matches`.
    """
    near = difflib.get_close_matches(str(name), set(names), most, cutoff)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def choose_from(name: object, names: Collection[str]) -> str:
    """Returns the end of a message about an unknown name: the most similar one, or else all."""
    return did_you_mean(name, names) or f"; choose from: {', '.join(names)}"
