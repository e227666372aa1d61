"""Base classes of agents' settings, and checks of settings that several algorithms share."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from distrl.errors import ConfigError
from distrl.field_checks import check_flag, check_positive_or_none
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


def check_annealing(settings: Any) -> None:
    """Refuses `anneal_updates` and `anneal_over_budget` that cannot work."""
    check_positive_or_none(settings, "anneal_updates")
    check_flag(settings, "anneal_over_budget")


def check_scalar_reward(env_spec: EnvironmentSpec, algorithm: str) -> None:
    """Refuses rewards that are not one number, for the algorithm of this name."""
    shape = env_spec.reward.shape
    if shape != ():
        raise ConfigError(f"reward: {algorithm} takes one number a step, got shape {list(shape)}")


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
