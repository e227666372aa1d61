"""Policies as distributions over actions: pure functions of the policy head's outputs.

Leading axes are arbitrary: `[B]` in an actor, `[T, B]` in a learner.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from dm_env import specs as dm_specs

from distrl import specs
from distrl.agents.modules.normals import DiagonalNormal
from distrl.errors import ConfigError
from distrl.random_keys import derive
from distrl.types import Nest

MOST_VALUES = 1_000_000
"""Values that the elements of an action of integers may have in total; more is no choice."""

IMPOSSIBLE = -1e30
"""As a logit: probability 0 without an infinity, of which gradients would be NaN."""


@dataclasses.dataclass(frozen=True)
class Categorical:
    """A choice among `num_actions`; its parameters are logits [..., num_actions]."""

    num_actions: int
    dtype: Any = np.int32  # dtype of the actions

    @property
    def params_shape(self) -> tuple[int, ...]:
        """Shape of the parameters, without leading axes."""
        return (self.num_actions,)

    def sample_with_log_prob(self, rng: jax.Array, logits: jax.Array) -> tuple[jax.Array, Any]:
        """Returns an action [...] and its log-probability [...]."""
        log_probs = jax.nn.log_softmax(logits)
        action = jax.random.categorical(rng, log_probs)
        return action.astype(self.dtype), _select(log_probs, action)

    def mode(self, logits: jax.Array) -> jax.Array:
        return jnp.argmax(logits, axis=-1).astype(self.dtype)

    def log_prob(self, logits: jax.Array, action: jax.Array) -> jax.Array:
        return _select(jax.nn.log_softmax(logits), action)

    def entropy(self, logits: jax.Array) -> jax.Array:
        log_probs = jax.nn.log_softmax(logits)
        return -jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1)

    def encode(self, action: jax.Array) -> jax.Array:
        """Returns the action as network input: one-hot, float32 [..., num_actions]."""
        return jax.nn.one_hot(action, self.num_actions, dtype=jnp.float32)

    def named_parameters(self, logits: jax.Array) -> dict[str, jax.Array]:
        """Returns normalised `logits` [..., num_actions]."""
        return {"logits": jax.nn.log_softmax(logits)}


class MultiCategorical:
    """Independent choices, one for each element of an action of bounded integers, [*shape].

    Its parameters are logits [..., sum(nvec)], those of the first element first.

    Attributes:
      nvec: numbers of values of the elements, in C order.
    """

    def __init__(self, spec: dm_specs.BoundedArray):
        self.nvec = specs.num_values(spec)
        self._shape = tuple(spec.shape)
        self._dtype = np.dtype(spec.dtype)
        self._first = np.broadcast_to(spec.minimum, spec.shape).reshape(-1).astype(np.int32)
        self._width = max(self.nvec)
        self._alike = min(self.nvec) == self._width

    @property
    def params_shape(self) -> tuple[int, ...]:
        """Shape of the parameters, without leading axes."""
        return (sum(self.nvec),)

    def sample_with_log_prob(self, rng: jax.Array, logits: jax.Array) -> tuple[jax.Array, Any]:
        """Returns an action [..., *shape] and its log-probability [...]."""
        log_probs = self._log_probs(logits)
        index = jax.random.categorical(rng, log_probs)
        return self._action(index), jnp.sum(_select(log_probs, index), axis=-1)

    def mode(self, logits: jax.Array) -> jax.Array:
        return self._action(jnp.argmax(self._log_probs(logits), axis=-1))

    def log_prob(self, logits: jax.Array, action: jax.Array) -> jax.Array:
        return jnp.sum(_select(self._log_probs(logits), self._index(action)), axis=-1)

    def entropy(self, logits: jax.Array) -> jax.Array:
        log_probs = self._log_probs(logits)
        return -jnp.sum(jnp.exp(log_probs) * log_probs, axis=(-2, -1))

    def encode(self, action: jax.Array) -> jax.Array:
        """Returns the action as network input: a one-hot for each element, [..., sum(nvec)]."""
        return self._flat(jax.nn.one_hot(self._index(action), self._width, dtype=jnp.float32))

    def named_parameters(self, logits: jax.Array) -> dict[str, jax.Array]:
        """Returns `logits` [..., sum(nvec)], those of each element normalised."""
        return {"logits": self._flat(self._log_probs(logits))}

    def _log_probs(self, logits: jax.Array) -> jax.Array:
        """Returns log-probabilities [..., D, most values] by element; short rows are padded."""
        # By slices: XLA 0.5.3 computes a gather with a constant operand wrong on a CPU.
        if self._alike:
            return jax.nn.log_softmax(logits.reshape(*logits.shape[:-1], -1, self._width))
        rows = jnp.split(logits, np.cumsum(self.nvec)[:-1], axis=-1)
        lead = [(0, 0)] * (logits.ndim - 1)
        padded = [
            jnp.pad(row, [*lead, (0, self._width - n)], constant_values=IMPOSSIBLE)
            for row, n in zip(rows, self.nvec, strict=True)
        ]
        return jax.nn.log_softmax(jnp.stack(padded, axis=-2))

    def _flat(self, rows: jax.Array) -> jax.Array:
        """Returns rows [..., D, most values] as [..., sum(nvec)], without the padding."""
        if self._alike:
            return rows.reshape(*rows.shape[:-2], -1)
        parts = [rows[..., i, :n] for i, n in enumerate(self.nvec)]
        return jnp.concatenate(parts, axis=-1)

    def _action(self, index: jax.Array) -> jax.Array:
        action = (index + self._first).astype(self._dtype)
        return action.reshape(*index.shape[:-1], *self._shape)

    def _index(self, action: jax.typing.ArrayLike) -> jax.Array:
        x = jnp.asarray(action, jnp.int32)
        leading = x.shape[: x.ndim - len(self._shape)]
        return x.reshape(*leading, len(self.nvec)) - self._first


class Joint:
    """Independent distributions over the parts of an action that is a nest.

    Its parameters are a tuple of the parts' parameters, in the order of `names`. Log-probabilities
    and entropies are sums over the parts: probabilities times densities if only some parts are
    continuous.

    Attributes:
      names: names of the parts, such as "move" or "arm.0".
    """

    def __init__(self, spec: Nest):
        """Args: spec: the action's spec.

        Raises:
          ConfigError: two parts have one name, or a part has no distribution; see `for_action`.
        """
        parts, self._structure = jax.tree_util.tree_flatten_with_path(spec, is_leaf=specs.is_spec)
        self.names = tuple(specs.path_name(path) for path, _ in parts)
        same = [name for i, name in enumerate(self.names) if name in self.names[:i]]
        if same:  # their random numbers come from their names
            raise ConfigError(
                f"action: two of its parts are called {same[0]!r}, since a key has a dot; rename it"
            )
        self.parts: Sequence[Any] = [
            _for_leaf(leaf, f"action.{name}")
            for name, (_, leaf) in zip(self.names, parts, strict=True)
        ]

    @property
    def params_shape(self) -> tuple[Any, ...]:
        """Shapes of the parts' parameters, without leading axes."""
        return tuple(part.params_shape for part in self.parts)

    def sample_with_log_prob(self, rng: jax.Array, params: Sequence[Any]) -> tuple[Nest, jax.Array]:
        """Returns an action, a nest of [..., *], and its log-probability [...]."""
        rngs = [derive(rng, name) for name in self.names]
        drawn = [
            part.sample_with_log_prob(*args)
            for part, *args in zip(self.parts, rngs, params, strict=True)
        ]
        actions, log_probs = zip(*drawn, strict=True)
        return self._structure.unflatten(actions), sum(log_probs)

    def mode(self, params: Sequence[Any]) -> Nest:
        modes = [
            part.mode(part_params) for part, part_params in zip(self.parts, params, strict=True)
        ]
        return self._structure.unflatten(modes)

    def log_prob(self, params: Sequence[Any], action: Nest) -> jax.Array:
        actions = self._structure.flatten_up_to(action)
        both = zip(self.parts, params, actions, strict=True)
        return sum(part.log_prob(part_params, x) for part, part_params, x in both)

    def entropy(self, params: Sequence[Any]) -> jax.Array:
        return sum(
            part.entropy(part_params) for part, part_params in zip(self.parts, params, strict=True)
        )

    def encode(self, action: Nest) -> jax.Array:
        """Returns the action as network input: the parts' inputs one after another, [..., F]."""
        actions = self._structure.flatten_up_to(action)
        encoded = [part.encode(x) for part, x in zip(self.parts, actions, strict=True)]
        return jnp.concatenate(encoded, axis=-1)

    def named_parameters(self, params: Sequence[Any]) -> dict[str, jax.Array]:
        """Returns the parts' parameters by name, such as "move.logits"."""
        return {
            f"{name}.{key}": value
            for name, part, part_params in zip(self.names, self.parts, params, strict=True)
            for key, value in part.named_parameters(part_params).items()
        }


Distribution = Categorical | MultiCategorical | DiagonalNormal | Joint


def for_action(spec: Nest) -> Distribution:
    """Returns the distribution for an action spec, of an array or of a nest of arrays.

    Raises:
      ConfigError: a leaf is of unbounded integers, or of too many values, or two have one name.
    """
    if specs.is_spec(spec):
        return _for_leaf(spec, "action")
    if not jax.tree.leaves(spec, is_leaf=specs.is_spec):
        raise ConfigError("action: expected an array or a nest of them, got nothing")
    return Joint(spec)


def _for_leaf(spec: Any, where: str) -> Categorical | MultiCategorical | DiagonalNormal:
    values = specs.num_values(spec)
    if sum(values) > MOST_VALUES:
        raise ConfigError(
            f"{where}: {sum(values):,} values are too many to choose from (at most "
            f"{MOST_VALUES:,}); make it continuous, a BoundedArray of floats, or coarser"
        )
    if isinstance(spec, dm_specs.DiscreteArray):
        return Categorical(int(spec.num_values), np.dtype(spec.dtype))
    if values:
        return MultiCategorical(spec)
    if isinstance(spec, dm_specs.Array) and np.issubdtype(spec.dtype, np.floating):
        return DiagonalNormal(spec)
    raise ConfigError(
        f"{where}: expected a DiscreteArray, a BoundedArray of integers (MultiBinary's), an "
        f"array of floats, or a nest of these, got {' '.join(repr(spec).split())}"
    )


def _select(log_probs: jax.Array, action: jax.Array) -> jax.Array:
    """Returns `log_probs[..., action]`, by one-hot: on a CPU cheaper than a gather."""
    one_hot = action[..., None] == np.arange(log_probs.shape[-1])
    return jnp.sum(jnp.where(one_hot, log_probs, 0), axis=-1)
