"""The interface of data transforms, between the raw time step and the agent."""

import abc
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import jax
import numpy as np

from distrl import specs
from distrl.agents.agent import Agent
from distrl.errors import ConfigError
from distrl.replay.config import ReplayConfig
from distrl.specs import EnvironmentSpec
from distrl.types import Array, Nest, State, TimeStep, Trajectory


class Transform(abc.ABC):
    """A change of the data that an agent sees and learns from; a frozen dataclass of settings.

    Raw time steps are stored and sent. A transform's functions are pure and run where the agent
    runs: `step` where it acts, `unroll` where it learns, with the same result for the same steps.
    Both change nothing but the observation and the reward. A transform without a `step` of its
    own, or whose `step` changes no time step, is for learning only: its `unroll` may change
    everything. Its statistics are part of the agent's versioned parameters, and its state of a
    stream is part of the recurrent state.

    Its results are checked: shapes and dtypes where an experiment is made, and, unless the
    transform is the package's, `step` against `unroll` where a learner starts
    (`distrl.testing.check_transform`).

    By default every method returns its input unchanged.

    Attributes:
      name: name in flags, parameters and messages; unique in an experiment.
      changes: the parts that it changes: "observation", "reward".
      needs_raw: parts that no transform before it may change, with the reason.
      not_before: names of transforms that must come before this one, with the reason.
    """

    name: ClassVar[str]
    changes: ClassVar[frozenset[str]] = frozenset()
    needs_raw: ClassVar[Mapping[str, str]] = {}
    not_before: ClassVar[Mapping[str, str]] = {}

    def spec(self, env_spec: EnvironmentSpec) -> EnvironmentSpec:
        """Returns the spec after this transform, given the one before it.

        Raises:
          ConfigError: the transform does not suit it.
        """
        return env_spec

    def check(self, config: Any, agent: Agent, replay: ReplayConfig) -> None:  # noqa: B027
        """Refuses an algorithm or a table with which this transform would make wrong data.

        Args:
          config: the algorithm's settings.
          agent: the agent, behind all transforms.
          replay: the table's settings.

        Raises:
          ConfigError: the data would be wrong; the message says what to use instead.
        """

    def initial_statistics(self, env_spec: EnvironmentSpec) -> Nest:
        """Returns the statistics before any data, NumPy arrays; `()` for a transform without any.

        A transform with statistics has the two methods below, too; `distrl.transforms.statistics`
        has running means and variances.

        Args: env_spec: the spec before this transform.
        """
        return ()

    def initial_state(self, env_spec: EnvironmentSpec, batch_size: int) -> State:
        """Returns a stream's state at the start of an episode, NumPy `[B, ...]`, or `()`."""
        return ()

    def step(self, statistics: Nest, state: State, timestep: TimeStep) -> tuple[TimeStep, State]:
        """Transforms a time step `[B, ...]` for acting; returns it and the state after it.

        At FIRST, `state` is the initial one.
        """
        return timestep, state

    def unroll(
        self, statistics: Nest, state: State, rng: jax.Array, batch: Trajectory
    ) -> Trajectory:
        """Transforms a batch for learning.

        Args:
          statistics: statistics of the parameters that learn.
          state: `[B, ...]`, this transform's state before the first step.
          rng: raw key (uint32 [2]), for transforms that draw random numbers.
          batch: `[T + 1, B, ...]`, as it reaches this transform.

        Returns:
          The batch with the shapes and dtypes that `spec` says; T may be another one if the
          transform is for learning only.
        """
        return batch

    def batch_statistics(self, batch: Trajectory) -> Nest:
        """Returns the statistics of one batch as it reaches this transform.

        They have the structure of `initial_statistics`. Every step of a stream is one of rows 0 to
        T - 1 of exactly one unroll, and row T of at most one: to count each step once, count rows 0
        to T - 1, or the T transitions. If unrolls overlap (`replay.period`), all steps are counted
        equally often, once for each unroll that is learned from.
        """
        return ()

    def merge_statistics(self, old: Nest, new: Nest) -> Nest:
        """Returns the statistics of the data of both, with the structure and dtypes of `old`."""
        return ()


class Stepwise(Transform):
    """A transform of single time steps: one function for acting and learning."""

    @abc.abstractmethod
    def apply(self, statistics: Nest, timestep: TimeStep) -> TimeStep:
        """Returns the transformed time step `[*leading, ...]`."""

    def step(self, statistics: Nest, state: State, timestep: TimeStep) -> tuple[TimeStep, State]:
        """See `Transform`."""
        return self.apply(statistics, timestep), state

    def unroll(
        self, statistics: Nest, state: State, rng: jax.Array, batch: Trajectory
    ) -> Trajectory:
        """See `Transform`."""
        return batch._replace(timestep=self.apply(statistics, batch.timestep))


def check_transform_kinds(transforms: Sequence[Transform]) -> None:
    """Raises ConfigError unless all are transforms, and dataclasses with a name."""
    for transform in transforms:
        if not isinstance(transform, Transform):
            raise ConfigError(f"transforms: {transform!r} is not a distrl.transforms.Transform")
        kind = type(transform).__name__
        if not dataclasses.is_dataclass(transform):
            raise ConfigError(
                f"transforms: {kind} must be a dataclass of its settings, which are saved; write "
                "`@dataclasses.dataclass(frozen=True)` before the class"
            )
        if not isinstance(getattr(transform, "name", None), str):
            raise ConfigError(f"transforms: {kind} must have a `name`, a string")


def check_order(transforms: Sequence[Transform]) -> None:
    """Refuses transforms that would corrupt each other's data.

    Raises:
      ConfigError: two have the same name, or the order is wrong; with the reason and the fix.
    """
    check_transform_kinds(transforms)
    for later, transform in enumerate(transforms):
        unknown = sorted(set(transform.changes) - {"observation", "reward"})
        if unknown:
            raise ConfigError(
                f"transforms: {transform.name}.changes has {unknown[0]!r}; there is 'observation' "
                "and 'reward'"
            )
        for earlier in transforms[:later]:
            if earlier.name == transform.name:
                raise ConfigError(f"transforms: there are two of the name {transform.name!r}")
            reason = _conflict(earlier, transform)
            if reason is not None:
                raise ConfigError(
                    f"transforms: {earlier.name} before {transform.name}: {reason}; put "
                    f"{transform.name} before {earlier.name}"
                )


def _conflict(earlier: Transform, later: Transform) -> str | None:
    """Returns why `earlier` must not come before `later`; None if it may."""
    if later.name in earlier.not_before:
        return earlier.not_before[later.name]
    changed = sorted(earlier.changes & later.needs_raw.keys())
    return later.needs_raw[changed[0]] if changed else None


def specs_seen(
    transforms: Sequence[Transform], env_spec: EnvironmentSpec
) -> tuple[EnvironmentSpec, ...]:
    """Returns the spec before each transform, and as the last one the agent's.

    Raises:
      ConfigError: a transform does not suit the spec before it.
    """
    seen = [env_spec]
    for transform in transforms:
        seen.append(transform.spec(seen[-1]))
    return tuple(seen)


def require_scalar_reward(name: str, env_spec: EnvironmentSpec) -> None:
    """Raises ConfigError unless the reward is one number a step."""
    if env_spec.reward.shape != ():
        raise ConfigError(
            f"transforms: {name} takes one reward a step, and the reward's shape is "
            f"{list(env_spec.reward.shape)}; put reward_weights before {name}"
        )


def chosen_leaves(
    name: str, leaves: Sequence[str], observation: Nest, suits: Callable[[Array], bool]
) -> dict[str, Array]:
    """Returns the observation's leaves that a transform works on, by name.

    Args:
      name: the transform's name.
      leaves: the user's choice; empty: all that are suitable, but for a mask of actions.
      observation: nest of specs.
      suits: whether the transform can work on a leaf with this spec.

    Raises:
      ConfigError: there is no such leaf, one is not suitable, or there is none at all.
    """
    flat, _ = jax.tree_util.tree_flatten_with_path(observation, is_leaf=specs.is_spec)
    by_name = {specs.path_name(path): spec for path, spec in flat}
    listed = ", ".join(f"{key} {np.dtype(s.dtype)}{list(s.shape)}" for key, s in by_name.items())
    for leaf in leaves:
        if leaf not in by_name:
            raise ConfigError(f"transforms: {name}.leaves: no {leaf!r}; there is {listed}")
        if not suits(by_name[leaf]):
            raise ConfigError(f"transforms: {name}.leaves: {leaf!r} does not suit it: {listed}")
    chosen = {
        key: s
        for key, s in by_name.items()
        if (key in leaves if leaves else suits(s) and key != specs.ACTION_MASK)
    }
    if not chosen:
        raise ConfigError(f"transforms: {name} finds no observation that suits it in {listed}")
    return chosen


def map_leaves(function: Callable[[str, Array], Array], nest: Nest) -> Nest:
    """Returns `nest` with each leaf replaced by `function(name, leaf)`."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: function(specs.path_name(path), leaf), nest, is_leaf=specs.is_spec
    )
