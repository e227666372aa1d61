"""What lies between the raw time step and the agent: the interface of data transforms."""

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import jax
import numpy as np

from distrl import specs
from distrl.errors import ConfigError
from distrl.specs import EnvironmentSpec
from distrl.types import Array, Nest, State, TimeStep, Trajectory


class Transform(abc.ABC):
    """Changes what an agent sees and learns from; a frozen dataclass of settings.

    Raw time steps are stored and sent. A transform's functions are pure and run where the agent
    runs: `step` where it acts, `unroll` where it learns, with the same result for the same steps
    (unless the transform is meant for learning only). Its statistics are part of the agent's
    versioned parameters, and what it remembers of a stream is part of the recurrent state.

    Every method passes through what it is given, unless a subclass says otherwise.

    Attributes:
      name: of the transform, in flags, parameters and messages; one of a kind in an experiment.
      changes: what it changes: "observation", "reward".
      needs_raw: what no transform before it may change, with the reason.
      not_before: names of the transforms that must come before this one, with the reason.
    """

    name: ClassVar[str]
    changes: ClassVar[frozenset[str]] = frozenset()
    needs_raw: ClassVar[Mapping[str, str]] = {}
    not_before: ClassVar[Mapping[str, str]] = {}

    def spec(self, env_spec: EnvironmentSpec) -> EnvironmentSpec:
        """What follows sees, given what this transform sees.

        Raises:
          ConfigError: the transform does not suit it.
        """
        return env_spec

    def initial_statistics(self, env_spec: EnvironmentSpec) -> Nest:
        """The statistics before any data, NumPy arrays; `()` for a transform without any.

        Args: env_spec: what this transform sees.
        """
        return ()

    def initial_state(self, env_spec: EnvironmentSpec, batch_size: int) -> State:
        """What it remembers of a stream at the start of an episode, NumPy `[B, ...]`, or `()`."""
        return ()

    def step(self, statistics: Nest, state: State, timestep: TimeStep) -> tuple[TimeStep, State]:
        """Acting: the time step `[B, ...]` as what follows sees it, and the state after it.

        The state is the initial one at FIRST.
        """
        return timestep, state

    def unroll(
        self, statistics: Nest, state: State, rng: jax.Array, batch: Trajectory
    ) -> Trajectory:
        """Learning: the batch as what follows sees it.

        Args:
          statistics: of the parameters that learn.
          state: `[B, ...]`, this transform's own, before the first step.
          rng: raw key (uint32 [2]), for transforms that draw.
          batch: `[T + 1, B, ...]`, as it reaches this transform.
        """
        return batch

    def batch_statistics(self, batch: Trajectory) -> Nest:
        """Of one batch as it reaches this transform; the structure of `initial_statistics`.

        Every step of a stream is row 0 to T - 1 of exactly one unroll, and row T of one at most:
        count rows 0 to T - 1, or the T transitions, and each is counted once; where unrolls overlap
        (`replay.period`), as often as its unrolls are learned from, all steps alike.
        """
        return ()

    def merge_statistics(self, old: Nest, new: Nest) -> Nest:
        """The statistics of the data of both."""
        return ()


class Stepwise(Transform):
    """A transform that takes each time step by itself: acting and learning are one function."""

    @abc.abstractmethod
    def apply(self, statistics: Nest, timestep: TimeStep) -> TimeStep:
        """The time step `[*leading, ...]` as what follows sees it."""

    def step(self, statistics: Nest, state: State, timestep: TimeStep) -> tuple[TimeStep, State]:
        """See `Transform`."""
        return self.apply(statistics, timestep), state

    def unroll(
        self, statistics: Nest, state: State, rng: jax.Array, batch: Trajectory
    ) -> Trajectory:
        """See `Transform`."""
        return batch._replace(timestep=self.apply(statistics, batch.timestep))


def check_order(transforms: Sequence[Transform]) -> None:
    """Refuses transforms that would corrupt each other's data.

    Raises:
      ConfigError: two of one name, or an order that would; with the reason and what is right.
    """
    for later, transform in enumerate(transforms):
        if not isinstance(transform, Transform):
            raise ConfigError(f"transforms: {transform!r} is no distrl.transforms.Transform")
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
    """Why `earlier` must not come before `later`; None where it may."""
    if later.name in earlier.not_before:
        return earlier.not_before[later.name]
    changed = sorted(earlier.changes & later.needs_raw.keys())
    return later.needs_raw[changed[0]] if changed else None


def specs_seen(
    transforms: Sequence[Transform], env_spec: EnvironmentSpec
) -> tuple[EnvironmentSpec, ...]:
    """What each transform sees, and at last what the agent sees: one spec more than transforms.

    Raises:
      ConfigError: a transform does not suit what it would see.
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


def path_name(path: Sequence[Any]) -> str:
    """A leaf's place in a nest as text: "position.x"; "observation" for a bare array."""
    keys = [str(getattr(k, "key", getattr(k, "idx", getattr(k, "name", k)))) for k in path]
    return ".".join(keys) or "observation"


def chosen_leaves(
    name: str, leaves: Sequence[str], observation: Nest, suits: Callable[[Array], bool]
) -> dict[str, Array]:
    """The observation's leaves that a transform works on, by name.

    Args:
      name: of the transform.
      leaves: chosen by the user; none: all that suit.
      observation: nest of specs.
      suits: says of a leaf's spec whether the transform can work on it.

    Raises:
      ConfigError: there is no such leaf, one does not suit, or none is left.
    """
    flat, _ = jax.tree_util.tree_flatten_with_path(observation, is_leaf=specs.is_spec)
    found = {path_name(path): spec for path, spec in flat}
    listed = ", ".join(f"{key} {np.dtype(s.dtype)}{list(s.shape)}" for key, s in found.items())
    for leaf in leaves:
        if leaf not in found:
            raise ConfigError(f"transforms: {name}.leaves: no {leaf!r}; there is {listed}")
        if not suits(found[leaf]):
            raise ConfigError(f"transforms: {name}.leaves: {leaf!r} does not suit it: {listed}")
    chosen = {key: s for key, s in found.items() if (key in leaves if leaves else suits(s))}
    if not chosen:
        raise ConfigError(f"transforms: {name} finds no observation that suits it in {listed}")
    return chosen


def map_leaves(function: Callable[[str, Array], Array], nest: Nest) -> Nest:
    """`nest` with `function(name, leaf)` in the place of each leaf."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: function(path_name(path), leaf), nest, is_leaf=specs.is_spec
    )
