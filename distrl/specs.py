"""Specs of what an environment and an agent exchange, and the check where data enters.

Leaves are dm_env's specs (`Array`, `BoundedArray`, `DiscreteArray`), or `jax.ShapeDtypeStruct`
where only shape and dtype matter; always of one stream at one step, without leading axes.
"""

from typing import Any, NamedTuple

import jax
import numpy as np
from dm_env import specs

from distrl.errors import SpecError
from distrl.types import Nest, TimeStep, Trajectory


class EnvironmentSpec(NamedTuple):
    """What an environment takes and gives.

    Some names of `env_info` have a meaning: `success` (int8: 1 success, 0 failure, -1 it does not
    say; read at LAST), `time_steps` (int32: the unwrapped environment's steps in this one) and
    `late_reward` (float32 `[reward_delay + 1, *reward.shape]`: the parts of `reward` that belong
    to the action before this step, to the one before that, and so on).
    """

    observation: Nest  # nest of dm_env specs
    action: Nest  # nest of dm_env specs
    reward: specs.Array = specs.Array((), np.float32, "reward")
    env_info: Any = ()  # dict of dm_env specs by name, as declared; () where there is none
    reward_delay: int = 0  # steps after which an action's reward is known at the latest


def is_spec(x: Any) -> bool:
    """True for a leaf of a spec nest (dm_env specs are not registered with JAX)."""
    return isinstance(x, (specs.Array, jax.ShapeDtypeStruct))


def struct(spec: Nest) -> Nest:
    """The same nest with `jax.ShapeDtypeStruct` leaves."""
    return jax.tree.map(
        lambda s: jax.ShapeDtypeStruct(tuple(s.shape), np.dtype(s.dtype)), spec, is_leaf=is_spec
    )


def zeros(spec: Nest, *leading: int) -> Nest:
    """Arrays of zeros for `spec` with `leading` axes put first."""
    return jax.tree.map(lambda s: np.zeros((*leading, *s.shape), s.dtype), struct(spec))


def timestep_struct(env_spec: EnvironmentSpec) -> TimeStep:
    """Shapes and dtypes of what is stored and sent of a time step: one stream, one step."""
    scalar = jax.ShapeDtypeStruct((), np.float32)
    return TimeStep(
        step_type=jax.ShapeDtypeStruct((), np.int8),
        reward=struct(env_spec.reward),
        discount=scalar,
        observation=struct(env_spec.observation),
        prev_action=struct(env_spec.action),
    )


def acting_struct(env_spec: EnvironmentSpec) -> TimeStep:
    """As `timestep_struct`, of what an agent acts on: with the stream's id."""
    return timestep_struct(env_spec)._replace(env_id=jax.ShapeDtypeStruct((), np.int32))


def trajectory_struct(env_spec: EnvironmentSpec, extras: Nest, state: Nest) -> Trajectory:
    """Shapes and dtypes of a `Trajectory`, of one stream at one step: without its T and B axes.

    Args:
      env_spec: of the environment.
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


def check(value: Nest, spec: Nest, leading: tuple[int, ...], where: str) -> None:
    """Raises SpecError unless `value` has `spec`'s structure, dtypes, and shapes after `leading`.

    Args:
      value: nest of arrays.
      spec: nest of specs, without leading axes.
      leading: the axes that come first, for example `(num_envs,)`.
      where: what the value is, for the message: "observation of CartPole-v1".
    """
    want, structure = jax.tree_util.tree_flatten_with_path(struct(spec))
    came, came_structure = jax.tree_util.tree_flatten(value)
    if came_structure != structure:
        raise SpecError(f"{where}: expected the structure {structure}, got {came_structure}")
    for (path, leaf), array in zip(want, came, strict=True):
        shape = (*leading, *leaf.shape)
        if getattr(array, "shape", None) != shape or array.dtype != leaf.dtype:
            name = where + jax.tree_util.keystr(path)
            got = (
                f"{array.dtype}{list(array.shape)}"
                if hasattr(array, "shape")
                else f"a {type(array).__name__}"
            )
            raise SpecError(f"{name}: expected {leaf.dtype}{list(shape)}, got {got}")
