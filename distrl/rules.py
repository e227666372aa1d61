"""Policies that do not learn: rules written by the user, and random actions."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Protocol

import jax
import numpy as np
import numpy.typing as npt
from dm_env import specs as dm_specs

from distrl import specs
from distrl.errors import ConfigError
from distrl.inferencer import InferenceSource
from distrl.specs import ACTION_MASK, EnvironmentSpec
from distrl.types import Inference, Nest, TimeStep


class FixedPolicy(Protocol):
    """The settings of a policy that does not learn. Hashable; holds no resources.

    It may also have `check(env_spec, name)`, which raises ConfigError if it cannot act for agents
    of that spec; `name` is its name in the experiment.
    """

    def make_source(
        self, env_spec: EnvironmentSpec, max_streams: int, seed: int
    ) -> InferenceSource:
        """Returns the source of its actions, in the process that acts.

        Args:
          env_spec: spec of the agents that it acts for.
          max_streams: most streams that it serves.
          seed: seed of its random numbers.
        """


@dataclasses.dataclass(frozen=True)
class Rule:
    """A rule of the user's own.

    Attributes:
      function: returns the action for one stream's observation, both as the environment has
        them: numbers of a `Discrete` or `MultiDiscrete` space count from its `start`. Or, if
        `batched`, returns the nest of actions `[B, ...]` for the TimeStep `[B, ...]` of several
        streams (their ids are `env_id`), both as agents have them: these numbers count from 0.
      batched: see `function`.
    """

    function: Callable[[Any], Any]
    batched: bool = False

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise ConfigError(f"Rule: function must be callable, got {self.function!r}")

    def make_source(
        self, env_spec: EnvironmentSpec, max_streams: int, seed: int
    ) -> InferenceSource:
        """See `FixedPolicy`."""
        del max_streams, seed
        name = getattr(self.function, "__name__", type(self.function).__name__)
        function = self.function if self.batched else functools.partial(self._each, env_spec)
        return FixedSource(function, env_spec, name)

    def _each(self, env_spec: EnvironmentSpec, timestep: TimeStep) -> Nest:
        seen = specs.raised(timestep.observation, env_spec.observation_start, 1)
        leaves, structure = jax.tree.flatten(seen)
        actions = [self.function(structure.unflatten(row)) for row in zip(*leaves, strict=True)]
        action = jax.tree.map(lambda *rows: np.stack(rows), *actions)
        return specs.raised(action, env_spec.action_start, -1)


@dataclasses.dataclass(frozen=True)
class RandomPolicy:
    """Uniform over the legal actions: an observation may have an `action_mask`.

    Unbounded actions, and those with an infinite bound, are drawn from a standard normal
    distribution and clipped.
    """

    def make_source(
        self, env_spec: EnvironmentSpec, max_streams: int, seed: int
    ) -> InferenceSource:
        """See `FixedPolicy`."""
        del max_streams
        generator = np.random.default_rng(seed)

        def act(timestep: TimeStep) -> Nest:
            batch_size = len(timestep.step_type)
            observation = timestep.observation
            mask = observation.get(ACTION_MASK) if isinstance(observation, dict) else None
            return jax.tree.map(
                lambda leaf: _draw(leaf, batch_size, mask, generator),
                env_spec.action,
                is_leaf=specs.is_spec,
            )

        return FixedSource(act, env_spec, "RandomPolicy")


class FixedSource:
    """Gives a function's actions in the form of an inferencer's; their version is 0."""

    def __init__(self, function: Callable[[TimeStep], Nest], env_spec: EnvironmentSpec, name: str):
        """Args:
        function: returns actions `[B, ...]` for a TimeStep `[B, ...]`.
        env_spec: spec of the agents.
        name: name of the rule, for messages.
        """
        self._function = function
        self._struct = specs.struct(env_spec.action)
        self._name = name

    def inference(
        self,
        stream_ids: npt.NDArray[np.int32],
        timestep: TimeStep,
        life: int = 0,
        with_state: bool = False,
    ) -> Inference:
        """See `Inferencer.inference`.

        Raises:
          SpecError: the function's actions have another structure, shape or dtype than the spec's.
        """
        del life
        action = self._function(timestep._replace(env_id=stream_ids))
        action = jax.tree.map(np.asarray, action)
        if jax.tree.structure(action) == jax.tree.structure(self._struct):
            action = jax.tree.map(_narrowed, action, self._struct)
        specs.check(action, self._struct, (len(stream_ids),), f"action of {self._name}")
        return Inference(action, (), 0, () if with_state else None)


def _narrowed(array: npt.NDArray[Any], struct: Any) -> npt.NDArray[Any]:
    """Returns an array in the spec's dtype if only the width differs, as with Python's numbers."""
    if array.dtype.kind == np.dtype(struct.dtype).kind and array.dtype.kind in "if":
        return array.astype(struct.dtype)
    return array


def _draw(leaf: Any, batch_size: int, mask: Any, generator: np.random.Generator) -> Any:
    shape = (batch_size, *leaf.shape)
    values = specs.num_values(leaf)
    if values and mask is not None and mask[0].size == sum(values):
        elements = np.split(mask.reshape(batch_size, -1) != 0, np.cumsum(values)[:-1], axis=1)
        index = np.stack([_draw_legal(legal, generator) for legal in elements], axis=1)
        return (index.reshape(shape) + leaf.minimum).astype(leaf.dtype)
    if isinstance(leaf, dm_specs.DiscreteArray):
        return generator.integers(leaf.num_values, size=shape, dtype=leaf.dtype)
    if not isinstance(leaf, dm_specs.BoundedArray):
        return generator.standard_normal(shape).astype(leaf.dtype)
    low, high = np.broadcast_to(leaf.minimum, leaf.shape), np.broadcast_to(leaf.maximum, leaf.shape)
    if np.issubdtype(leaf.dtype, np.integer):
        return generator.integers(low, high, size=shape, endpoint=True).astype(leaf.dtype)
    finite = np.isfinite(low) & np.isfinite(high)
    uniform = generator.uniform(np.where(finite, low, 0), np.where(finite, high, 1), shape)
    normal = np.clip(generator.standard_normal(shape), low, high)
    return np.where(finite, uniform, normal).astype(leaf.dtype)


def _draw_legal(legal: npt.NDArray[Any], generator: np.random.Generator) -> npt.NDArray[Any]:
    """Returns legal choices [B], each with the same chance, for `legal`, bool [B, num_values]."""
    # Each of several independent uniform numbers is the largest with the same chance; if no choice
    # is legal, as at an episode's end, all count.
    noise = generator.random(legal.shape)
    legal = legal | ~legal.any(axis=1, keepdims=True)
    return np.where(legal, noise, -1).argmax(axis=1)
