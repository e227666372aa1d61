"""The values of a step in the order of an unroll's columns: fast for common nests."""

from collections.abc import Callable
from operator import itemgetter
from typing import Any

import jax
import numpy.typing as npt

from distrl.specs import is_spec
from distrl.types import Inference, Nest, TimeStep, Trajectory


def flattener(spec: Nest) -> Callable[[Nest], Any]:
    """Returns a function from a nest like `spec` to its leaves in JAX's order.

    For another structure it raises TypeError, LookupError or AttributeError, or returns something
    without a shape.
    """
    if is_spec(spec):
        return lambda nest: (nest,)
    leaves, structure = jax.tree.flatten(spec)
    if isinstance(spec, dict) and spec and all(is_spec(leaf) for leaf in spec.values()):
        keys = sorted(spec)
        count = len(keys)
        get = itemgetter(*keys) if count > 1 else lambda nest: (nest[keys[0]],)

        def from_dict(nest: Nest) -> Any:
            if len(nest) != count:
                raise KeyError
            return get(nest)

        return from_dict

    def from_tree(nest: Nest) -> Any:
        values, nest_structure = jax.tree.flatten(nest)
        if nest_structure != structure:
            raise TypeError
        return values

    if not leaves and spec == ():
        return lambda nest: nest if len(nest) == 0 else from_tree(nest)
    return from_tree


def step_values(struct: Trajectory) -> Callable[[TimeStep, Inference], list[npt.NDArray[Any]]]:
    """Returns a function from a step to its values, in column order, without the version."""
    step = struct.timestep
    reward = flattener(step.reward)
    observation = flattener(step.observation)
    prev_action = flattener(step.prev_action)
    action = flattener(struct.action)
    extras = flattener(struct.extras)
    if all(map(is_spec, (step.reward, step.observation, step.prev_action, struct.action))):
        # The fields of a TimeStep up to `prev_action` are in the order of the columns.
        return lambda timestep, inference: [
            *timestep[:5], inference.action, *extras(inference.extras)
        ]  # fmt: skip

    def values(timestep: TimeStep, inference: Inference) -> list[npt.NDArray[Any]]:
        return [
            timestep.step_type,
            *reward(timestep.reward),
            timestep.discount,
            *observation(timestep.observation),
            *prev_action(timestep.prev_action),
            *action(inference.action),
            *extras(inference.extras),
        ]

    return values
