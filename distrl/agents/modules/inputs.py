"""Which parts of an observation a network sees, and which actions an `action_mask` allows."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from distrl import specs
from distrl.agents.modules.distributions import IMPOSSIBLE
from distrl.errors import ConfigError
from distrl.runtime.traceback_text import one_line
from distrl.specs import ACTION_MASK, EnvironmentSpec
from distrl.types import Nest


class Inputs(NamedTuple):
    """What a network takes of an observation.

    Attributes:
      spec: spec of what the torso sees.
      take: observation -> what the torso sees, a part of it.
      legal: observation [..., *] -> which actions are legal, bool [..., num_actions]; None without
        a mask.
    """

    spec: Nest
    take: Callable[[Nest], Nest]
    legal: Callable[[Nest], jax.Array] | None = None


def make_inputs(
    env_spec: EnvironmentSpec, names: Sequence[str] = (), mask_actions: bool = True
) -> Inputs:
    """Returns what a network takes of an environment's observations.

    Args:
      env_spec: spec of the environment.
      names: the parts that the torso sees, of a nest: "camera", "arm.angle", or "arm" for all of
        its parts; empty: all, but for a mask that is used as such.
      mask_actions: the part ACTION_MASK of a dict says which actions are legal.

    Raises:
      ConfigError: there is no part of such a name, or the mask does not fit the action.
    """
    observation = env_spec.observation
    legal = _legal(env_spec) if mask_actions and has_mask(observation) else None
    if not names and legal is None:
        return Inputs(observation, lambda x: x)
    paths, _ = jax.tree_util.tree_flatten_with_path(observation, is_leaf=specs.is_spec)
    known = [specs.path_name(path) for path, _ in paths]
    for name in names:
        if not any(_within(leaf, name) for leaf in known):
            raise ConfigError(
                f"network.inputs: no {name!r} in the observation; there is {', '.join(known)}"
            )
    if names:
        chosen = {leaf for leaf in known if any(_within(leaf, name) for name in names)}
    else:
        chosen = set(known) - {ACTION_MASK}
    if not chosen:
        raise ConfigError(
            f"network.inputs: the observation has nothing but {ACTION_MASK}; name it in "
            "network.inputs if the network should see it"
        )

    def take(nest: Nest) -> Nest:
        return _pruned(nest, "", chosen)

    return Inputs(take(observation), take, legal)


def has_mask(observation: Nest) -> bool:
    """Whether an observation's spec is a dict with an ACTION_MASK."""
    return isinstance(observation, Mapping) and ACTION_MASK in observation


def masked(logits: jax.Array, legal: jax.Array) -> jax.Array:
    """Returns logits [..., num_actions] that give illegal actions probability and gradient 0."""
    return jnp.where(legal, logits, IMPOSSIBLE)


def _legal(env_spec: EnvironmentSpec) -> Callable[[Nest], jax.Array]:
    mask, action = env_spec.observation[ACTION_MASK], env_spec.action
    hint = "network.mask_actions=False makes it an input like any other"
    nvec = specs.num_values(action)
    if not nvec:
        got = one_line(repr(action))
        raise ConfigError(
            f"{ACTION_MASK}: only one DiscreteArray or BoundedArray of integers can be masked, not "
            f"{got}; {hint}"
        )
    flat, rows = (sum(nvec),), (*action.shape, nvec[0])  # rows if all elements have as many values
    wanted = {flat, rows} if action.shape and len(set(nvec)) == 1 else {flat}
    kind = np.dtype(mask.dtype).kind if specs.is_spec(mask) else ""
    if kind not in tuple("biuf") or tuple(mask.shape) not in wanted:
        got = f"{np.dtype(mask.dtype)}{list(mask.shape)}" if kind else "a nest"
        want = " or ".join(str(list(shape)) for shape in sorted(wanted, key=len))
        raise ConfigError(
            f"{ACTION_MASK}: expected int8 or bool of shape {want}, one for each action, got "
            f"{got}; {hint}"
        )
    ends = np.cumsum(nvec)[:-1]
    ndim = len(mask.shape)

    def legal(observation: Nest) -> jax.Array:
        values = jnp.asarray(observation[ACTION_MASK]) != 0
        values = values.reshape(*values.shape[: values.ndim - ndim], *flat)
        elements = jnp.split(values, ends, axis=-1)
        # At the end of an episode there is often no legal action: all count.
        some = [x | ~jnp.any(x, axis=-1, keepdims=True) for x in elements]
        return jnp.concatenate(some, axis=-1)

    return legal


def _within(leaf: str, name: str) -> bool:
    return leaf == name or leaf.startswith(f"{name}.")


def _pruned(nest: Any, prefix: str, chosen: set[str]) -> Any:
    """Returns a nest with the chosen leaves only; dicts stay dicts, tuples tuples."""

    def part(key: Any, value: Any) -> Any:
        name = f"{prefix}{key}"
        if not any(_within(leaf, name) for leaf in chosen):
            return _Nothing
        is_nest = isinstance(value, (Mapping, list, tuple))
        return _pruned(value, f"{name}.", chosen) if is_nest else value

    if isinstance(nest, Mapping):
        parts = {key: part(key, value) for key, value in nest.items()}
        return {key: value for key, value in parts.items() if value is not _Nothing}
    if isinstance(nest, (list, tuple)):
        keys = getattr(nest, "_fields", range(len(nest)))
        rows = [part(key, value) for key, value in zip(keys, nest, strict=True)]
        return tuple(row for row in rows if row is not _Nothing)
    return nest


class _Nothing:
    """Stands for a part that is left out."""
