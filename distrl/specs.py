"""Specs of what an environment and an agent exchange, and checks of data against them.

Leaves are dm_env's specs (`Array`, `BoundedArray`, `DiscreteArray`), or `jax.ShapeDtypeStruct`
if only shape and dtype matter; always for one stream at one step, without leading axes.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from dm_env import specs

from distrl.errors import SpecError
from distrl.types import TIME_FIELDS, Nest, TimeStep, Trajectory

ACTION_MASK = "action_mask"
"""Name of an observation's leaf that says which discrete actions are legal: those not 0."""


class EnvironmentSpec(NamedTuple):
    """An environment's observations, actions, rewards and other information.

    Some names of `env_info` have a meaning: `success` (int8: 1 success, 0 failure, -1 unknown;
    read at LAST), `time_steps` (int32: steps of the unwrapped environment in this one) and
    `late_reward` (float32 `[reward_delay + 1, *reward.shape]`: the parts of `reward` that belong
    to the action before this step, to the one before that, and so on).
    """

    observation: Nest  # nest of dm_env specs
    action: Nest  # nest of dm_env specs
    reward: specs.Array = specs.Array((), np.float32, "reward")
    env_info: Any = ()  # dict of declared dm_env specs by name; () if there are none
    reward_delay: int = 0  # most steps until an action's reward is known
    # Nests of numbers to add to get the environment's own values, which may not count from 0; None:
    # nothing to add. Pools and agents only see values as the specs have them.
    observation_start: Nest = None
    action_start: Nest = None


def is_spec(x: Any) -> bool:
    """Whether `x` is a leaf of a spec nest (dm_env specs are not registered with JAX)."""
    return isinstance(x, (specs.Array, jax.ShapeDtypeStruct))


def num_values(spec: Any) -> list[int]:
    """Returns how many values each element of bounded integers may have; [] for another leaf.

    The elements are in C order; a DiscreteArray, a choice among actions, has one.
    """
    if isinstance(spec, specs.DiscreteArray):
        return [int(spec.num_values)]
    if not (isinstance(spec, specs.BoundedArray) and np.issubdtype(spec.dtype, np.integer)):
        return []
    low, high = (np.broadcast_to(x, spec.shape) for x in (spec.minimum, spec.maximum))
    return [int(b) - int(a) + 1 for a, b in zip(low.flat, high.flat, strict=True)]


def struct(spec: Nest) -> Nest:
    """Returns the same nest with `jax.ShapeDtypeStruct` leaves."""
    return jax.tree.map(
        lambda s: jax.ShapeDtypeStruct(tuple(s.shape), np.dtype(s.dtype)), spec, is_leaf=is_spec
    )


def path_name(path: Sequence[Any]) -> str:
    """Returns a leaf's path in a nest as text: "position.x"; "observation" for a bare array."""
    keys = [str(getattr(k, "key", getattr(k, "idx", getattr(k, "name", k)))) for k in path]
    return ".".join(keys) or "observation"


def zeros(spec: Nest, *leading: int) -> Nest:
    """Returns arrays of zeros for `spec`, with `leading` axes first."""
    return jax.tree.map(lambda s: np.zeros((*leading, *s.shape), s.dtype), struct(spec))


def batch_struct(struct: Trajectory, length: int, size: int) -> Trajectory:
    """Returns shapes and dtypes of a batch.

    Args:
      struct: those of one stream at one step, as `trajectory_struct` returns them.
      length: transitions of an unroll.
      size: unrolls of a batch.
    """

    def batched(name: str, part: Nest) -> Nest:
        axes = (length + 1, size) if name in TIME_FIELDS else (size,)
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((*axes, *leaf.shape), leaf.dtype), part
        )

    return Trajectory(*(batched(*item) for item in struct._asdict().items()))


def timestep_struct(env_spec: EnvironmentSpec) -> TimeStep:
    """Returns shapes and dtypes of what is stored and sent of one stream's time step."""
    scalar = jax.ShapeDtypeStruct((), np.float32)
    return TimeStep(
        step_type=jax.ShapeDtypeStruct((), np.int8),
        reward=struct(env_spec.reward),
        discount=scalar,
        observation=struct(env_spec.observation),
        prev_action=struct(env_spec.action),
    )


def acting_struct(env_spec: EnvironmentSpec) -> TimeStep:
    """Returns shapes and dtypes of what an agent acts on: `timestep_struct` with a stream id."""
    return timestep_struct(env_spec)._replace(env_id=jax.ShapeDtypeStruct((), np.int32))


def trajectory_struct(env_spec: EnvironmentSpec, extras: Nest, state: Nest) -> Trajectory:
    """Returns shapes and dtypes of a `Trajectory` for one stream at one step: without T and B axes.

    Args:
      env_spec: the environment's spec.
      extras: nest of specs of the agent's extras, one stream.
      state: nest of specs of the agent's recurrent state, one stream.
    """
    integer = jax.ShapeDtypeStruct((), np.int32)
    return Trajectory(
        timestep=timestep_struct(env_spec),
        action=struct(env_spec.action),
        extras=struct(extras),
        version=integer,
        state=struct(state),
        stream_id=integer,
        life=integer,
        probability=jax.ShapeDtypeStruct((), np.float32),
    )


def is_clippable(spec: Any) -> bool:
    """Whether a leaf has floats with a finite bound, so that values beyond it can be clipped."""
    if not isinstance(spec, specs.BoundedArray) or not np.issubdtype(spec.dtype, np.floating):
        return False
    return bool(np.isfinite(spec.minimum).any() or np.isfinite(spec.maximum).any())


def check(value: Nest, spec: Nest, leading: tuple[int, ...], where: str) -> None:
    """Raises SpecError unless `value` has `spec`'s structure, dtypes, and shapes after `leading`.

    Args:
      value: nest of arrays.
      spec: nest of specs, without leading axes.
      leading: the leading axes, for example `(num_envs,)`.
      where: what the value is, for the message, e.g. "observation of CartPole-v1".
    """
    expected, structure = jax.tree_util.tree_flatten_with_path(struct(spec))
    arrays, value_structure = jax.tree_util.tree_flatten(value)
    if value_structure != structure:
        raise SpecError(f"{where}: expected the structure {structure}, got {value_structure}")
    for (path, leaf), array in zip(expected, arrays, strict=True):
        shape = (*leading, *leaf.shape)
        if getattr(array, "shape", None) != shape or array.dtype != leaf.dtype:
            name = where + jax.tree_util.keystr(path)
            got = (
                f"{array.dtype}{list(array.shape)}"
                if hasattr(array, "shape")
                else f"a {type(array).__name__}"
            )
            raise SpecError(f"{name}: expected {leaf.dtype}{list(shape)}, got {got}")


def rebuilt(value: Nest, spec: Nest) -> Nest:
    """Returns a nest in its spec's containers: its mappings as dicts, its sequences as tuples.

    A value of another structure stays as it is: `check` says what is wrong.
    """
    if isinstance(spec, dict) and isinstance(value, Mapping) and value.keys() == spec.keys():
        return {name: rebuilt(value[name], part) for name, part in spec.items()}
    if isinstance(spec, tuple) and isinstance(value, Sequence) and len(value) == len(spec):
        parts = map(rebuilt, value, spec)
        return type(spec)(*parts) if hasattr(spec, "_fields") else tuple(parts)
    return value


def converted(value: Nest, spec: Nest) -> Nest:
    """Converts a nest of array-likes to the dtypes of `spec` where that is safe.

    It is safe if the kind stays the same (float64 to float32) or the values do (integers). What
    cannot be converted stays as it is: `check` says what is wrong.

    Args:
      value: nest of arrays, numbers, or lists of these.
      spec: nest of specs.
    """

    def convert(leaf: Any, given: Any) -> Any:
        try:
            array = np.asarray(given)
        except ValueError:  # a list of lists of different lengths
            return given
        if array.dtype == leaf.dtype or array.dtype.kind not in "biuf":
            return array
        cast = array.astype(leaf.dtype)
        if array.dtype.kind in "iu" and leaf.dtype.kind not in "fc":  # a small one would wrap
            return cast if (cast == array).all() else array
        return cast if np.can_cast(array.dtype, leaf.dtype, "same_kind") else array

    try:
        return jax.tree.map(convert, struct(spec), value)
    except (ValueError, TypeError):  # another structure
        return value


def raised(value: Nest, starts: Nest, sign: int) -> Nest:
    """Shifts integers to count from the environment's numbers, or, with sign -1, from 0.

    Args:
      value: nest of arrays or numbers; it stays as it is if `starts` has another structure.
      starts: `observation_start` or `action_start` of a spec.
      sign: 1 or -1.
    """
    if value is None or not any(np.any(start) for start in jax.tree.leaves(starts)):
        return value

    def moved(start: Any, leaf: Any) -> Any:
        if not np.any(start):
            return leaf
        array = np.asarray(leaf)
        if array.dtype.kind in "iub" and array.dtype not in (np.int32, np.int64):
            array = array.astype(np.int64)  # a small dtype may not hold the sum
        return array + sign * start

    try:
        return jax.tree.map(moved, starts, value)
    except (ValueError, TypeError):
        return value


def check_integers(value: Nest, spec: Nest, starts: Nest, where: str) -> None:
    """Raises SpecError for integers beyond the bounds of their specs.

    Args:
      value: nest of arrays that `check` has accepted, with any leading axes.
      spec: nest of specs, without leading axes.
      starts: what to add to the numbers in a message: see `EnvironmentSpec`.
      where: what the value is, for the message.
    """
    raised_leaves = jax.tree.leaves(raised(value, starts, 1))
    leaves = jax.tree.leaves(spec, is_leaf=is_spec)
    for leaf, array, given in zip(leaves, jax.tree.leaves(value), raised_leaves, strict=True):
        if not (isinstance(leaf, specs.BoundedArray) and np.issubdtype(leaf.dtype, np.integer)):
            continue
        wrong = (array < leaf.minimum) | (array > leaf.maximum)
        if np.any(wrong):
            start = given - array
            low, high, got = (
                np.broadcast_to(number, wrong.shape)[wrong][0]
                for number in (leaf.minimum + start, leaf.maximum + start, given)
            )
            raise SpecError(f"{where}: expected whole numbers from {low} to {high}, got {got}")


def check_choices(value: Nest, spec: Nest) -> None:
    """Raises SpecError for a number that a DiscreteArray of a spec does not have."""
    for leaf, array in zip(jax.tree.leaves(spec, is_leaf=is_spec), jax.tree.leaves(value)):
        if not isinstance(leaf, specs.DiscreteArray):
            continue
        wrong = (array < 0) | (array >= leaf.num_values)
        if np.any(wrong):
            raise SpecError(no_choice(leaf.name, leaf.num_values, array[wrong].flat[0]))


def no_choice(name: str, num_values: int, number: Any) -> str:
    """Returns the message for a number that a DiscreteArray of a spec does not have."""
    return (
        f"{name}: expected one of {num_values} numbers, from the start of its space on, got its "
        f"number {number}"
    )


def success_code(value: Any, where: str) -> np.int8:
    """Returns the code of a success (1), a failure (0), or neither (-1).

    Args:
      value: True or False, 1 or 0 of any type, or -1 or None for neither.
      where: what the value is, for messages.

    Raises:
      SpecError: it is something else, such as a share of 0.3.
    """
    if value is None:
        return np.int8(-1)
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "biuf" or array.item() not in (-1, 0, 1):
        raise SpecError(
            f"{where}: expected True or 1, False or 0, or None or -1 for neither, got "
            f"{value!r:.200}"
        )
    return np.int8(array.item())


def batch_size(value: Nest, spec: Nest, where: str) -> int:
    """Returns B of a nest of arrays `[B, ...]`.

    Raises:
      SpecError: an array has neither the shape of its spec nor one axis before it.
    """
    expected, structure = jax.tree_util.tree_flatten_with_path(struct(spec))
    arrays, value_structure = jax.tree_util.tree_flatten(value)
    if value_structure != structure:
        raise SpecError(f"{where}: expected the structure {structure}, got {value_structure}")
    path, leaf = expected[0]
    shape = np.shape(arrays[0])
    if shape[1:] != leaf.shape or len(shape) != len(leaf.shape) + 1:
        name, one = where + jax.tree_util.keystr(path), list(leaf.shape)
        batch = ", ".join(map(str, ("B", *leaf.shape)))
        raise SpecError(
            f"{name}: expected {leaf.dtype}{one}, or {leaf.dtype}[{batch}] for B environments, got "
            f"{arrays[0].dtype}{list(shape)}"
        )
    return int(shape[0])
