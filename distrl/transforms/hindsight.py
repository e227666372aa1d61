"""Hindsight experience replay: achieved goals replace the desired ones.

Andrychowicz et al. 2017, https://arxiv.org/abs/1707.01495.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from distrl import specs
from distrl.agents.settings import check_number
from distrl.errors import ConfigError
from distrl.specs import EnvironmentSpec
from distrl.transforms.base import Transform
from distrl.types import Nest, State, StepType, Trajectory

STRATEGIES = ("future", "final")
_WHY = "hindsight replaces goals by achieved ones, and computes rewards, in raw units"


@dataclasses.dataclass(frozen=True)
class Hindsight(Transform):
    """Relabels unrolls of a goal environment; for learning only, and for off-policy agents.

    The observation is a dict in which `achieved_key` and `desired_key` have the same spec. A
    segment is an episode's part of an unroll. With `probability`, a segment with a transition gets
    a new goal: the one achieved at its step k, later than its first. Its desired goals up to k are
    replaced and its rewards recomputed. Step k becomes LAST. The steps after it keep goal and
    rewards; the first of them becomes FIRST, so that no transition leads from one goal to another.

    With `ends_at_goal`, k is the first step (later than the segment's first) that reaches the new
    goal, and its discount is 0. Otherwise its discount is unchanged: 1 at a MID step, so that the
    step before bootstraps from k's own value under the new goal.

    Segments end with their unroll: goals further ahead than `replay.unroll_length` are not seen,
    so an episode should fit. Behaviour log-probabilities remain those under the original goal.

    Attributes:
      reward: `(achieved, desired) -> reward` of the step that achieved it, in JAX: arrays
        `[T + 1, B, ...]` to `[T + 1, B]`. Must equal the environment's.
      strategy: "future": k is uniform over the segment's steps after its first; "final": its last.
      probability: probability of a new goal for a segment. The paper's 4 relabelled for 1 original
        is 0.8.
      ends_at_goal: whether the environment truly ends its episode at the goal.
      reached: `(achieved, desired) -> bool`, like `reward`; only used with `ends_at_goal`. None:
        whether the reward is 0 or more, which suits rewards of -1 and 0.
      achieved_key, desired_key: keys of the observation dict; gymnasium's goal environments have
        the defaults.
    """

    reward: Callable[[Any, Any], Any]
    strategy: str = "future"
    probability: float = 0.8
    ends_at_goal: bool = False
    reached: Callable[[Any, Any], Any] | None = None
    achieved_key: str = "achieved_goal"
    desired_key: str = "desired_goal"

    name: ClassVar[str] = "hindsight"
    changes: ClassVar[frozenset[str]] = frozenset({"observation", "reward"})
    needs_raw: ClassVar[dict[str, str]] = {"observation": _WHY, "reward": _WHY}

    def __post_init__(self) -> None:
        for field in ("reward", "reached"):
            value = getattr(self, field)
            if not callable(value) and not (field == "reached" and value is None):
                raise ConfigError(
                    f"hindsight.{field}: expected a function (achieved, desired), got {value!r}"
                )
        if self.strategy not in STRATEGIES:
            raise ConfigError(
                f"hindsight.strategy: expected one of {', '.join(STRATEGIES)}; "
                f"got {self.strategy!r}"
            )
        check_number(self, "probability", lambda x: 0 <= x <= 1, "in [0, 1]", "hindsight")

    def spec(self, env_spec: EnvironmentSpec) -> EnvironmentSpec:
        """See `Transform`. Raises ConfigError if the goals or the functions do not fit."""
        observation = env_spec.observation
        for key in (self.achieved_key, self.desired_key):
            if not isinstance(observation, dict) or key not in observation:
                have = ", ".join(observation) if isinstance(observation, dict) else "no dict"
                raise ConfigError(
                    f"hindsight: the observation must be a dict with {self.achieved_key!r} and "
                    f"{self.desired_key!r}; it has {have}"
                )
        achieved, desired = (
            specs.struct(observation[key]) for key in (self.achieved_key, self.desired_key)
        )
        if achieved != desired:
            raise ConfigError(
                f"hindsight: {self.achieved_key!r} and {self.desired_key!r} must have one "
                f"structure, shapes and dtypes; got {achieved} and {desired}"
            )
        leading = (3, 2)
        goal = jax.tree.map(lambda s: jax.ShapeDtypeStruct((*leading, *s.shape), s.dtype), achieved)
        wants = {"reward": (self.reward, (*leading, *env_spec.reward.shape))}
        if self.reached is not None:
            wants["reached"] = (self.reached, leading)
        elif self.ends_at_goal and env_spec.reward.shape:
            raise ConfigError(
                "hindsight.reached: a function is needed if the reward is a vector, "
                f"{list(env_spec.reward.shape)}, and the episode ends at the goal"
            )
        for field, (function, shape) in wants.items():
            try:
                got = jax.eval_shape(function, goal, goal)
            except (TypeError, ValueError, jax.errors.JAXTypeError) as error:
                line = str(error).strip().splitlines()[0]
                raise ConfigError(
                    f"hindsight.{field}: it must take two goals of arrays [T + 1, B, ...] in "
                    f"JAX; {type(error).__name__}: {line}"
                ) from error
            if getattr(got, "shape", None) != shape:
                raise ConfigError(
                    f"hindsight.{field}: for goals [{leading[0]}, {leading[1]}, ...] it must give "
                    f"{list(shape)}, and gives {getattr(got, 'shape', got)}"
                )
        return env_spec

    def unroll(
        self, statistics: Nest, state: State, rng: jax.Array, batch: Trajectory
    ) -> Trajectory:
        """See the class. Deterministic given `rng`."""
        timestep = jax.tree.map(jnp.asarray, batch.timestep)
        start, end = segments(timestep.step_type)
        rows = jnp.arange(start.shape[0])[:, None]
        # Two draws per row; those of a segment's first row are used.
        relabel_draw, goal_draw = jax.random.uniform(rng, (2, *start.shape))
        relabel = (_at(relabel_draw, start) < self.probability) & (end > start)
        goal_row = end
        if self.strategy == "future":
            chosen = jnp.floor(_at(goal_draw, start) * (end - start)).astype(start.dtype)
            goal_row = jnp.minimum(start + 1 + chosen, end)
        observation = timestep.observation
        achieved, desired = observation[self.achieved_key], observation[self.desired_key]
        goal = jax.tree.map(lambda leaf: _at(leaf, goal_row), achieved)
        reward = jnp.asarray(self.reward(achieved, goal), timestep.reward.dtype)
        ended = jnp.zeros_like(relabel)
        if self.ends_at_goal:
            reached = reward >= 0 if self.reached is None else self.reached(achieved, goal)
            hit = jnp.where(reached & (rows > start) & (rows <= goal_row), rows, len(rows))
            # The next hit at or after the segment's second row; a hit beyond its goal's row is in a
            # later segment.
            first_hit = _at(jax.lax.cummin(hit, axis=0, reverse=True), start)
            ended = first_hit <= goal_row
            goal_row = jnp.minimum(first_hit, goal_row)
        under = relabel & (rows <= goal_row)
        last = relabel & (rows == goal_row)
        # A single step between two LASTs stays LAST: nothing follows it in its episode.
        first = relabel & (rows == goal_row + 1) & (timestep.step_type != StepType.LAST)
        step_type = jnp.where(last, StepType.LAST, timestep.step_type)
        step_type = jnp.where(first, StepType.FIRST, step_type).astype(timestep.step_type.dtype)
        reward = _where(under & (rows > start), reward, timestep.reward)
        discount = jnp.where(last & ended, 0.0, timestep.discount)
        timestep = timestep._replace(
            step_type=step_type,
            reward=_where(first, jnp.zeros_like(reward), reward),
            discount=discount.astype(timestep.discount.dtype),
            observation={
                **observation,
                self.desired_key: jax.tree.map(
                    lambda new, old: _where(under, new, old), goal, desired
                ),
            },
            prev_action=jax.tree.map(
                lambda leaf: _where(first, jnp.zeros_like(leaf), leaf), timestep.prev_action
            ),
        )
        return batch._replace(timestep=timestep)


def segments(step_type: jax.typing.ArrayLike) -> tuple[jax.Array, jax.Array]:
    """Returns, for every step, the first and the last row of its episode's part of the unroll.

    Args:
      step_type: [T + 1, B].

    Returns:
      int32 [T + 1, B] each.
    """
    step_type = jnp.asarray(step_type)
    rows = jnp.broadcast_to(
        jnp.arange(step_type.shape[0], dtype=jnp.int32)[:, None], step_type.shape
    )
    is_first, is_last = step_type == StepType.FIRST, step_type == StepType.LAST
    starts = is_first.at[1:].set(is_first[1:] | is_last[:-1]).at[0].set(True)
    ends = is_last.at[:-1].set(is_last[:-1] | is_first[1:]).at[-1].set(True)
    start = jax.lax.cummax(jnp.where(starts, rows, 0), axis=0)
    end = jax.lax.cummin(jnp.where(ends, rows, len(rows)), axis=0, reverse=True)
    return start, end


def _at(leaf: jax.Array, row: jax.Array) -> jax.Array:
    """Returns `leaf[row[t, b], b]`, [T + 1, B, ...]."""
    return jnp.take_along_axis(leaf, row.reshape(*row.shape, *[1] * (leaf.ndim - 2)), axis=0)


def _where(mask: jax.Array, new: jax.Array, old: jax.Array) -> jax.Array:
    """Selects by a mask [T + 1, B] between leaves [T + 1, B, ...], in the old one's dtype."""
    mask = mask.reshape(*mask.shape, *[1] * (old.ndim - 2))
    return jnp.where(mask, new, old).astype(old.dtype)
