"""Checks of agents' settings. All raise ConfigError, which says what would be right."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import jax

from distrl.errors import ConfigError
from distrl.specs import EnvironmentSpec


class SavedSettings:
    """Settings that mean what they meant when they were saved.

    Attributes:
      BEFORE: what newer settings were before they could be set: a file without them means this.
    """

    BEFORE: ClassVar[Mapping[str, Any]] = {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Takes a pickled state."""
        self.__dict__.update({**self.BEFORE, **state})


class InputSettings(SavedSettings):
    """Settings with `scale_integers`."""

    BEFORE: ClassVar[Mapping[str, Any]] = {"scale_integers": False}


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
    if isinstance(value, jax.core.Tracer):  # of `Tunable`, which has checked the first value
        return
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not (is_number and math.isfinite(value) and good(value)):
        raise ConfigError(f"{prefix}.{field}: expected a number {want}, got {value!r}")


def check_positive_or_none(settings: Any, field: str) -> None:
    """Refuses a field that is neither None nor a number above 0; as `check_number`."""
    if getattr(settings, field) is not None:
        check_number(settings, field, lambda x: x > 0, "above 0, or None")


def check_annealing(settings: Any) -> None:
    """Refuses `anneal_updates` and `anneal_over_budget` that cannot work; as `check_number`."""
    check_positive_or_none(settings, "anneal_updates")
    check_flag(settings, "anneal_over_budget")


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


def check_kind(settings: Any, field: str, kind: type) -> None:
    """Refuses a field that is not a `kind`; as `check_number`."""
    value = getattr(settings, field)
    if not isinstance(value, kind):
        article = "an" if kind.__name__[0] in "AEIOU" else "a"
        raise ConfigError(f"agent.{field}: expected {article} {kind.__name__}, got {value!r}")


def check_scalar_reward(env_spec: EnvironmentSpec, algorithm: str) -> None:
    """Refuses rewards that are not one number, for the algorithm of this name."""
    shape = env_spec.reward.shape
    if shape != ():
        raise ConfigError(f"reward: {algorithm} takes one number a step, got shape {list(shape)}")


def check_count(settings: Any, field: str, prefix: str = "agent", least: int = 1) -> None:
    """Refuses a field that is not a whole number of `least` or more; as `check_number`."""
    value = getattr(settings, field)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(
            f"{prefix}.{field}: expected a whole number of at least {least}, got {value!r}"
        )


def check_sizes(settings: Any, field: str, prefix: str = "agent") -> None:
    """Refuses a field that is not a tuple of whole numbers of 1 or more; as `check_number`."""
    value = getattr(settings, field)
    good = isinstance(value, tuple) and all(type(n) is int and n > 0 for n in value)
    if not good:
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
    """Refuses a field that is none of `choices`; as `check_number`."""
    value = getattr(settings, field)
    if value not in choices:
        raise ConfigError(f"{prefix}.{field}: expected one of {', '.join(choices)}; got {value!r}")


def algorithm(config: Any) -> Any:
    """Returns an algorithm's settings: `config`, or what is in it if it is a `Tunable`."""
    inner = getattr(config, "agent", None)
    return inner if dataclasses.is_dataclass(inner) else config


def is_own(value: Any) -> bool:
    """Returns whether a value's class is a user's own, and not of this package."""
    return type(value).__module__.partition(".")[0] != "distrl"


def with_settings(config: Any, **settings: Any) -> Any:
    """Returns `config` with other settings of its `algorithm`, as `dataclasses.replace`."""
    if algorithm(config) is not config:
        settings = {"agent": dataclasses.replace(config.agent, **settings)}
    return dataclasses.replace(config, **settings)
