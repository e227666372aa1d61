"""Transforms of observations, element by element."""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from dm_env import specs as dm_specs

from distrl.field_checks import check_names, check_number
from distrl.specs import EnvironmentSpec
from distrl.transforms import statistics as running
from distrl.transforms.base import (
    Stepwise,
    chosen_leaves,
    map_leaves,
)
from distrl.transforms.statistics import Statistics
from distrl.types import Array, Nest, StepType, TimeStep, Trajectory

_RAW = "its function is written for the environment's own observations"
SHAPING = {"reward_shaping": _RAW, "potential_shaping": _RAW}


def _is_float(leaf: Array) -> bool:
    return bool(jnp.issubdtype(leaf.dtype, np.floating))


def _bounded(env_spec: EnvironmentSpec, names: dict[str, Array], limit: float | None) -> Nest:
    """Returns the spec with the leaves in `names` as float32 in [-limit, limit]."""

    def one(name: str, leaf: Array) -> Array:
        if name not in names:
            return leaf
        kind = getattr(leaf, "name", None)
        if limit is None:
            return dm_specs.Array(leaf.shape, np.float32, kind)
        return dm_specs.BoundedArray(leaf.shape, np.float32, -limit, limit, kind)

    return env_spec._replace(observation=map_leaves(one, env_spec.observation))


@dataclasses.dataclass(frozen=True)
class ObservationNormalizer(Stepwise):
    """Subtracts the running mean and divides by the running standard deviation.

    Each element of the observations has its own statistics; floats become float32, other
    observations are unchanged. The statistics are those of every step that the learner consumed,
    FIRST and LAST included, each counted once (twice if its unroll was sampled twice). Before the
    first update the mean is 0 and the standard deviation 1.

    Attributes:
      clip: results are clipped to [-clip, clip]; None: not at all.
      epsilon: added to the variance.
      leaves: names of the observations to normalise, e.g. "position", "arm.angle"; empty: all
        floats.
    """

    clip: float | None = 10.0
    epsilon: float = 1e-8
    leaves: tuple[str, ...] = ()

    name = "observation_normalizer"
    changes = frozenset({"observation"})
    not_before: ClassVar[Mapping[str, str]] = SHAPING

    def __post_init__(self) -> None:
        if self.clip is not None:
            check_number(self, "clip", lambda x: x > 0, "above 0, or None", self.name)
        check_number(self, "epsilon", lambda x: x > 0, "above 0", self.name)
        check_names(self, "leaves", self.name)

    def _chosen(self, observation: Nest) -> dict[str, Array]:
        return chosen_leaves(self.name, self.leaves, observation, _is_float)

    def spec(self, env_spec: EnvironmentSpec) -> EnvironmentSpec:
        """See `Transform`."""
        return _bounded(env_spec, self._chosen(env_spec.observation), self.clip)

    def initial_statistics(self, env_spec: EnvironmentSpec) -> Statistics:
        """See `Transform`."""
        return running.initial(self._chosen(env_spec.observation))

    def apply(self, statistics: Statistics, timestep: TimeStep) -> TimeStep:
        """See `Stepwise`."""
        variances = running.variance(statistics)

        def normalize(name: str, leaf: Array) -> Array:
            if name not in variances:
                return leaf
            deviation = running.deviation(leaf.astype(jnp.float32), statistics.mean[name])
            out = deviation / jnp.sqrt(variances[name] + self.epsilon)
            return out if self.clip is None else jnp.clip(out, -self.clip, self.clip)

        return timestep._replace(observation=map_leaves(normalize, timestep.observation))

    def batch_statistics(self, batch: Trajectory) -> Statistics:
        """See `Transform`. Counts rows 0 to T - 1, without those that pad a whole episode."""
        rows = jax.tree.map(lambda leaf: leaf[:-1], batch.timestep.observation)
        last = batch.timestep.step_type == StepType.LAST
        padding = jnp.zeros(last[:-1].shape, bool).at[1:].set(last[1:-1] & last[:-2])
        return running.of_batch(self._chosen(rows), ~padding)

    def merge_statistics(self, old: Statistics, new: Statistics) -> Statistics:
        """See `Transform`."""
        return running.merge(old, new)


@dataclasses.dataclass(frozen=True)
class ObservationClip(Stepwise):
    """Clips observations of floats to [-limit, limit]; others are unchanged.

    Attributes:
      limit: observations are clipped to [-limit, limit]; above 0.
      leaves: names of the observations to clip; empty: all floats.
    """

    limit: float = 10.0
    leaves: tuple[str, ...] = ()

    name = "observation_clip"
    changes = frozenset({"observation"})
    not_before: ClassVar[Mapping[str, str]] = {
        "observation_normalizer": "its statistics would be of clipped observations",
        **SHAPING,
    }

    def __post_init__(self) -> None:
        check_number(self, "limit", lambda x: x > 0, "above 0", self.name)
        check_names(self, "leaves", self.name)

    def spec(self, env_spec: EnvironmentSpec) -> EnvironmentSpec:
        """See `Transform`."""
        chosen = chosen_leaves(self.name, self.leaves, env_spec.observation, _is_float)
        return _bounded(env_spec, chosen, self.limit)

    def apply(self, statistics: Nest, timestep: TimeStep) -> TimeStep:
        """See `Stepwise`."""
        chosen = chosen_leaves(self.name, self.leaves, timestep.observation, _is_float)

        def clip(name: str, leaf: Array) -> Array:
            if name not in chosen:
                return leaf
            return jnp.clip(leaf.astype(jnp.float32), -self.limit, self.limit)

        return timestep._replace(observation=map_leaves(clip, timestep.observation))
