"""Checks a transform's results by structure, shapes and dtypes, which costs nothing under `jit`."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from distrl import specs
from distrl.errors import ConfigError
from distrl.specs import EnvironmentSpec
from distrl.transforms.base import Transform
from distrl.types import TIME_FIELDS, Nest, TimeStep, Trajectory

OTHERS = ("step_type", "discount", "prev_action")
"""Fields of a time step that a transform must not change, unless it is for learning only."""

_STATISTICS = ("initial_statistics", "batch_statistics", "merge_statistics")


def has_step(transform: Transform) -> bool:
    """Whether a transform has a `step` of its own; one without is for learning only."""
    return type(transform).step is not Transform.step


def check_step(
    transform: Transform, before: TimeStep, after: TimeStep, env_spec: EnvironmentSpec
) -> None:
    """Refuses a transformed time step that is not as the transform declares.

    Args:
      transform: the transform.
      before, after: time steps `[*leading, ...]`, perhaps traced.
      env_spec: the spec after the transform.

    Raises:
      ConfigError: the step does not conform to the spec, a part that differs is not among the
        transform's `changes`, or another field has another shape or dtype than before.
    """
    name = transform.name
    _check_timestep(name, before, after, env_spec, before.step_type.shape)
    for part in ("observation", "reward"):
        old, new = (jax.tree.leaves(getattr(step, part)) for step in (before, after))
        same = len(old) == len(new) and all(x is y for x, y in zip(old, new, strict=True))
        if not same and part not in transform.changes:
            raise ConfigError(
                f"transforms: {name} changes the {part}, which others must know: declare "
                f"`changes = frozenset({{{part!r}}})`"
            )


def check_unroll(
    transform: Transform, before: Trajectory, after: Trajectory, env_spec: EnvironmentSpec
) -> None:
    """Refuses a transformed batch that is not as the transform declares.

    Args:
      transform: the transform.
      before, after: batches `[T + 1, B, ...]`, perhaps traced.
      env_spec: the spec after the transform.

    Raises:
      ConfigError: as for `check_step`. A transform for learning only may change T.
    """
    name = transform.name
    if not isinstance(after, Trajectory):
        raise ConfigError(f"transforms: {name}.unroll must return a Trajectory, not {after!r:.200}")
    leading = before.timestep.step_type.shape
    if not has_step(transform) and isinstance(after.timestep, TimeStep):
        leading = (*np.shape(after.timestep.step_type)[:1], *leading[1:])
    _check_timestep(f"{name}.unroll", before.timestep, after.timestep, env_spec, leading)
    for field in set(Trajectory._fields) - {"timestep"}:
        old, new = getattr(before, field), getattr(after, field)
        rows = leading[0] if field in TIME_FIELDS else None
        check_same(f"{name}.unroll", field, old, new, rows)


def check_statistics(transform: Transform, env_spec: EnvironmentSpec) -> None:
    """Refuses a transform whose statistics would never change.

    Args:
      transform: the transform.
      env_spec: the spec before it.

    Raises:
      ConfigError: it has some of the methods for statistics and not all, or its initial ones are
        None.
    """
    name, kind = transform.name, type(transform)
    defined = [each for each in _STATISTICS if getattr(kind, each) is not getattr(Transform, each)]
    missing = [each for each in _STATISTICS if each not in defined]
    if defined and missing:
        raise ConfigError(
            f"transforms: {name} has {defined[0]}, and no {missing[0]}: statistics need "
            f"{', '.join(_STATISTICS)}"
        )
    if transform.initial_statistics(env_spec) is None:
        raise ConfigError(
            f"transforms: {name}.initial_statistics returns None, so that nothing is counted: "
            "return NumPy arrays, or () for no statistics"
        )


def _check_timestep(
    name: str,
    before: TimeStep,
    after: TimeStep,
    env_spec: EnvironmentSpec,
    leading: tuple[int, ...],
) -> None:
    if not isinstance(after, TimeStep):
        raise ConfigError(f"transforms: {name} must return a TimeStep, and returns {after!r:.200}")
    for part, spec in (("observation", env_spec.observation), ("reward", env_spec.reward)):
        value = getattr(after, part)
        want: Nest = jax.tree.map(lambda leaf: (*leading, *leaf.shape), spec, is_leaf=specs.is_spec)
        got = jax.tree.map(np.shape, value)
        if got != want:
            raise ConfigError(
                f"transforms: {name} must give {part}s of shape {want}, as its `spec` says, and "
                f"gives {got}"
            )
        want = jax.tree.map(_dtype, spec, is_leaf=specs.is_spec)
        got = jax.tree.map(_dtype, value)
        if got != want:
            raise ConfigError(
                f"transforms: {name} must give {part}s of dtype {want}, as its `spec` says, and "
                f"gives {got}"
            )
    for part in OTHERS:
        check_same(name, part, getattr(before, part), getattr(after, part), leading[0])


def check_same(name: str, field: str, old: Nest, new: Nest, rows: int | None = None) -> None:
    """Refuses another structure, shape or dtype.

    Args:
      name: name of what gave the new value, for the message.
      field: name of the field.
      old, new: the field's value before and now, perhaps traced.
      rows: length of the new value's first axis; None: as the old value's.

    Raises:
      ConfigError: they differ.
    """

    def struct(leaf: Any, rows: int | None = None) -> str:
        shape = np.shape(leaf)
        return f"{_dtype(leaf)}{list(shape) if rows is None else [rows, *shape[1:]]}"

    want, got = jax.tree.map(lambda leaf: struct(leaf, rows), old), jax.tree.map(struct, new)
    if got != want:
        raise ConfigError(f"transforms: {name} must give the {field} as {want}, and gives {got}")


def _dtype(leaf: Any) -> str:
    dtype = leaf.dtype if hasattr(leaf, "dtype") else jnp.result_type(leaf)
    return str(jax.dtypes.canonicalize_dtype(dtype))
