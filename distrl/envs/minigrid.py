"""MiniGrid's observations as arrays that a network can take."""

import importlib
from typing import Any

import numpy as np
from dm_env import specs as dm_specs

LARGEST = (10, 5, 3)  # objects, colours, states (an agent's state is its direction), each from 0


def arrays_only(env: Any) -> Any:
    """Returns a MiniGrid environment without the mission, and with true bounds for its image.

    The mission is a text. The image, uint8 [7, 7, 3], numbers objects, colours and states in
    its three channels, not brightness: MiniGrid declares 0 and 255 as bounds, by which a network
    would scale what it sees to next to nothing. Not for wrappers that render pixels.
    """
    gymnasium = importlib.import_module("gymnasium")
    constants = importlib.import_module("minigrid.core.constants")
    spaces = {k: v for k, v in env.observation_space.spaces.items() if k != "mission"}
    image = spaces["image"]
    high = [
        max(constants.OBJECT_TO_IDX.values()),
        max(constants.COLOR_TO_IDX.values()),
        max(3, *constants.STATE_TO_IDX.values()),  # an agent's state is its direction, one of four
    ]
    spaces["image"] = gymnasium.spaces.Box(
        np.zeros(image.shape, image.dtype),
        np.broadcast_to(np.asarray(high, image.dtype), image.shape),
        dtype=image.dtype,
    )
    return gymnasium.wrappers.TransformObservation(
        env,
        lambda observation: {name: observation[name] for name in spaces},
        gymnasium.spaces.Dict(spaces),
    )


def image_spec(spec: dm_specs.Array) -> dm_specs.BoundedArray:
    """Returns the spec of MiniGrid's image, uint8 [7, 7, 3], with its true bounds."""
    return dm_specs.BoundedArray(spec.shape, spec.dtype, np.zeros(3), LARGEST, spec.name)
