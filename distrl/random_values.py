"""Random values of specs, for checks of the user's own parts."""

from typing import Any

import jax
import numpy as np
import numpy.typing as npt
from dm_env import specs as dm_specs

from distrl import specs
from distrl.specs import EnvironmentSpec
from distrl.types import Nest, StepType, TimeStep, Trajectory

_MOST = 256  # most different values of an integer
_LONGEST = 6  # most steps of an episode


def random_values(random: np.random.Generator, spec: Nest, *leading: int) -> Nest:
    """Returns random arrays `[*leading, ...]` within the bounds of their specs.

    Floats are of size 2 or so, and integers small. The first action of an action mask is legal.

    Args:
      random: where the numbers come from.
      spec: nest of specs.
      leading: the leading axes.
    """
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: _leaf(random, leaf, specs.path_name(path), leading),
        spec,
        is_leaf=specs.is_spec,
    )


def random_steps(
    random: np.random.Generator,
    env_spec: EnvironmentSpec,
    extras: Nest,
    length: int,
    streams: int,
    episode: int | None = None,
) -> Trajectory:
    """Returns random steps `[length, streams]` of episodes with true ends and time limits.

    Each stream begins with an episode. Its state is ().

    Args:
      random: where the numbers come from.
      env_spec: spec of the environment.
      extras: nest of specs of the agent's extras.
      length: rows.
      streams: number of streams.
      episode: steps of each episode; None: 1 to 6.
    """

    def episodes() -> Any:
        return random.integers(1, _LONGEST + 1, streams) if not episode else np.array(episode)

    step_type = np.zeros((length, streams), np.int8)
    left = np.broadcast_to(episodes(), (streams,))
    for t in range(1, length):
        ended = step_type[t - 1] == StepType.LAST
        left = np.where(ended, episodes(), left - 1)
        step_type[t] = np.where(
            ended, StepType.FIRST, np.where(left <= 0, StepType.LAST, StepType.MID)
        )
    first = step_type == StepType.FIRST
    true_end = (step_type == StepType.LAST) & (random.random(step_type.shape) < 0.5)

    def drawn(nest: Nest) -> Nest:
        return random_values(random, nest, length, streams)

    def unless_first(leaf: npt.NDArray[Any]) -> npt.NDArray[Any]:
        mask = first.reshape(*first.shape, *[1] * (leaf.ndim - 2))
        return np.where(mask, np.zeros_like(leaf), leaf)

    action = drawn(env_spec.action)
    ids = np.arange(streams, dtype=np.int32)
    timestep = TimeStep(
        step_type,
        unless_first(drawn(env_spec.reward)),
        np.where(true_end, 0, 1).astype(np.float32),
        drawn(env_spec.observation),
        jax.tree.map(lambda leaf: unless_first(np.roll(leaf, 1, axis=0)), action),
    )
    version = np.zeros((length, streams), np.int32)
    one = np.ones(streams, np.float32)
    return Trajectory(timestep, action, drawn(extras), version, (), ids, 0 * ids, one)


def _leaf(
    random: np.random.Generator, leaf: Any, name: str, leading: tuple[int, ...]
) -> npt.NDArray[Any]:
    shape, dtype = (*leading, *leaf.shape), np.dtype(leaf.dtype)
    if dtype.kind == "b":
        value: npt.NDArray[Any] = random.random(shape) < 0.5
    elif dtype.kind in "iu":
        low, high = _bounds(leaf, np.int64, 0, 9)
        low = np.clip(-_MOST // 2, low, high)
        value = random.integers(low, np.minimum(high, low + _MOST - 1) + 1, shape)
    else:
        low, high = _bounds(leaf, np.float64, -np.inf, np.inf)
        value = np.clip(2 * random.normal(size=shape), low, high)
    if name == specs.ACTION_MASK:
        value[..., 0] = 1
    return value.astype(dtype)


def _bounds(leaf: Any, kind: type, low: float, high: float) -> tuple[Any, Any]:
    if not isinstance(leaf, dm_specs.BoundedArray):
        return low, high
    return leaf.minimum.astype(kind), leaf.maximum.astype(kind)
