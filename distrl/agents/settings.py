"""Checks of agents' settings."""

import math
from collections.abc import Callable
from typing import Any

from distrl.errors import ConfigError
from distrl.specs import EnvironmentSpec


def check_number(
    settings: Any, field: str, good: Callable[[float], bool], want: str, prefix: str = "agent"
) -> None:
    """Refuses a field that is no finite number, or not a good one.

    Args:
      settings: a dataclass.
      field: of it.
      good: of the value.
      want: for the message: "a number `want`".
      prefix: of the field's name in the message.

    Raises:
      ConfigError: with what would be right.
    """
    value = getattr(settings, field)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not (is_number and math.isfinite(value) and good(value)):
        raise ConfigError(f"{prefix}.{field}: expected a number {want}, got {value!r}")


def check_scalar_reward(env_spec: EnvironmentSpec, who: str) -> None:
    """Refuses, for `who`, an algorithm, rewards that are not one number. Raises ConfigError."""
    shape = env_spec.reward.shape
    if shape != ():
        raise ConfigError(f"reward: {who} takes one number a step, got shape {list(shape)}")


def check_count(settings: Any, field: str, prefix: str = "agent", least: int = 1) -> None:
    """Refuses a field that is no whole number of `least` or more; as `check_number`."""
    value = getattr(settings, field)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(
            f"{prefix}.{field}: expected a whole number of at least {least}, got {value!r}"
        )


def check_sizes(settings: Any, field: str, prefix: str = "agent") -> None:
    """Refuses a field that is no tuple of whole numbers of 1 or more; as `check_number`."""
    value = getattr(settings, field)
    good = isinstance(value, tuple) and all(type(n) is int and n > 0 for n in value)
    if not good:
        raise ConfigError(f"{prefix}.{field}: expected a tuple of positive integers, got {value!r}")


def check_choice(
    settings: Any, field: str, choices: tuple[str, ...], prefix: str = "agent"
) -> None:
    """Refuses a field that is none of `choices`; as `check_number`."""
    value = getattr(settings, field)
    if value not in choices:
        raise ConfigError(f"{prefix}.{field}: expected one of {', '.join(choices)}; got {value!r}")
