"""Data transforms, between the raw time step and the agent."""

import dataclasses
from collections.abc import Sequence

from distrl.errors import ConfigError
from distrl.field_checks import choose_from
from distrl.transforms.agent import TransformedAgent
from distrl.transforms.base import Stepwise, Transform, check_order
from distrl.transforms.frame_stack import FrameStack
from distrl.transforms.hindsight import Hindsight
from distrl.transforms.observations import ObservationClip, ObservationNormalizer
from distrl.transforms.rewards import (
    PotentialShaping,
    RewardClip,
    RewardNormalizer,
    RewardScale,
    RewardShaping,
    RewardWeights,
)

__all__ = [
    "TRANSFORMS",
    "FrameStack",
    "Hindsight",
    "ObservationClip",
    "ObservationNormalizer",
    "PotentialShaping",
    "RewardClip",
    "RewardNormalizer",
    "RewardScale",
    "RewardShaping",
    "RewardWeights",
    "Stepwise",
    "Transform",
    "TransformedAgent",
    "by_name",
    "check_order",
]

# In an order that is right for all of them.
_KINDS = (
    Hindsight,
    RewardWeights,
    RewardShaping,
    PotentialShaping,
    ObservationNormalizer,
    ObservationClip,
    RewardNormalizer,
    RewardClip,
    RewardScale,
    FrameStack,
)
TRANSFORMS: dict[str, type[Transform]] = {kind.name: kind for kind in _KINDS}


def by_name(names: Sequence[str], known: Sequence[Transform] = ()) -> tuple[Transform, ...]:
    """Returns transforms by their names.

    Args:
      names: names, in the order of application.
      known: transforms to use if they have such a name; others are made with their defaults.

    Raises:
      ConfigError: there is none of that name, or it has settings without defaults.
    """
    by_known_name = {transform.name: transform for transform in known}
    return tuple(by_known_name[name] if name in by_known_name else _default(name) for name in names)


def _default(name: str) -> Transform:
    if name not in TRANSFORMS:
        raise ConfigError(f"transforms: no {name!r}{choose_from(name, TRANSFORMS)}")
    needed = [
        field.name
        for field in dataclasses.fields(TRANSFORMS[name])  # type: ignore[arg-type]
        if field.default is dataclasses.MISSING
    ]
    if needed:
        raise ConfigError(
            f"transforms: {name} needs {', '.join(needed)}: put it into the transforms of an "
            "experiment file"
        )
    return TRANSFORMS[name]()
