"""Hindsight experience replay: achieved goals replace the desired ones.

Andrychowicz et al. 2017, https://arxiv.org/abs/1707.01495.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from distrl import specs
from distrl.agents.agent import Agent
from distrl.agents.losses.batch_share import draw
from distrl.agents.settings import algorithm
from distrl.agents.structs import extras_struct
from distrl.errors import ConfigError
from distrl.field_checks import check_choice, check_number
from distrl.replay.config import ReplayConfig
from distrl.specs import EnvironmentSpec
from distrl.transforms.base import Transform
from distrl.types import TIME_FIELDS, Nest, State, StepType, TimeStep, Trajectory

STRATEGIES = ("future", "final")
_WHY = "hindsight replaces goals by achieved ones, and computes rewards, in raw units"


@dataclasses.dataclass(frozen=True)
class Hindsight(Transform):
    """Relabels transitions of a goal environment; for learning only, and for off-policy agents.

    The observation is a dict in which `achieved_key` and `desired_key` have the same spec. With
    `probability`, and independently of all others, a transition gets a new goal: one achieved at a
    later step of its episode, within the unroll. Both its observations get that goal, and its
    reward is recomputed.

    Neighbours have different goals, so each transition has rows of its own: an unroll of T
    transitions becomes 2 T rows, in which rows 2t and 2t + 1 are the start (FIRST) and the end
    (LAST) of transition t. An end keeps its discount: 1 unless the episode truly ended there, so
    that it is bootstrapped from under the new goal. With `ends_at_goal` a relabelled transition
    that reaches its new goal has a discount of 0. A transition from LAST to FIRST has two LAST
    rows, from which nothing is learned.

    Goals further ahead than the unroll's end are not seen, so an episode should fit. Statistics of
    later transforms count a step once for each row that it begins.

    Attributes:
      reward: `(achieved, desired) -> reward` of the step that achieved it, in JAX: arrays
        `[T, B, ...]` to `[T, B]`. Must equal the environment's.
      strategy: "future": the goal is uniform over the later steps; "final": the last of them.
      probability: probability of a new goal for a transition. The paper's 4 relabelled for 1
        original is 0.8.
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
        check_choice(self, "strategy", STRATEGIES, "hindsight")
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
                    f"hindsight.{field}: it must take two goals of arrays [T, B, ...] in "
                    f"JAX; {type(error).__name__}: {line}"
                ) from error
            if getattr(got, "shape", None) != shape:
                raise ConfigError(
                    f"hindsight.{field}: for goals [{leading[0]}, {leading[1]}, ...] it must give "
                    f"{list(shape)}, and gives {getattr(got, 'shape', got)}"
                )
        return env_spec

    def check(self, config: Any, agent: Agent, replay: ReplayConfig) -> None:
        """See `Transform`. Refuses on-policy agents, and those that need more than transitions."""
        if getattr(config, "on_policy", False) or jax.tree.leaves(extras_struct(agent)):
            raise ConfigError(
                f"hindsight with {type(config).__name__}: it learns from its own policy's actions, "
                "none of which was chosen for the new goals; use an off-policy agent: DQN, DDPG, "
                "TD3 or SAC"
            )
        state = agent.initial_state(1)
        if isinstance(state, dict) and jax.tree.leaves(state.get("frame_stack", ())):
            raise ConfigError(
                "hindsight with frame_stack: each transition is relabelled by itself, without the "
                "frames before it; leave one of the two out"
            )
        if jax.tree.leaves(state["agent"] if isinstance(state, dict) else state):
            raise ConfigError(
                f"hindsight with {type(config).__name__}: each transition is relabelled by itself, "
                "without the steps before it that the agent's memory needs; use one without memory"
            )
        n_step = getattr(algorithm(config), "n_step", 1)
        if n_step != 1:
            raise ConfigError(
                f"agent.n_step={n_step} with hindsight: each transition has its own goal, so that "
                "returns sum 1 reward; use agent.n_step=1"
            )
        length = replay.unroll_length
        later = range(1, length + 1)  # steps after each transition's start
        at_once = sum(1 / n for n in later) / length if self.is_future else 1 / length
        if self.probability and at_once > 0.5:
            raise ConfigError(
                f"replay.unroll_length={length} with hindsight: goals come from the same unroll, "
                f"so {100 * at_once:.0f} % of them would be the very next step's, and half at most "
                f"may be: use a replay.unroll_length of at least {5 if self.is_future else 2}, "
                "better of an episode's length"
            )

    @property
    def is_future(self) -> bool:
        """Whether a goal is any later step's, rather than the last one's."""
        return self.strategy == "future"

    def unroll(
        self, statistics: Nest, state: State, rng: jax.Array, batch: Trajectory
    ) -> Trajectory:
        """See the class. Deterministic given `rng`."""
        timestep = jax.tree.map(jnp.asarray, batch.timestep)
        length = timestep.step_type.shape[0] - 1
        rows, end = jnp.arange(length)[:, None], last_rows(timestep.step_type)[:-1]
        real = end > rows
        relabel_draw, goal_draw = draw(jax.random.uniform, rng, (2, *end.shape), axis=2)
        relabel = (relabel_draw < self.probability) & real
        goal_row = end
        if self.is_future:
            later = jnp.floor(goal_draw * (end - rows)).astype(end.dtype)
            goal_row = jnp.minimum(rows + 1 + later, end)  # a draw may round up to 1
        achieved = timestep.observation[self.achieved_key]
        goal = jax.tree.map(lambda leaf: _at(leaf, goal_row), achieved)
        reached = jax.tree.map(lambda leaf: leaf[1:], achieved)
        reward = jnp.asarray(self.reward(reached, goal), timestep.reward.dtype)
        discount = timestep.discount[1:]
        if self.ends_at_goal:
            hit = reward >= 0 if self.reached is None else self.reached(reached, goal)
            discount = jnp.where(relabel & hit, 0, discount).astype(discount.dtype)

        def relabelled(observation: Nest) -> Nest:
            desired = observation[self.desired_key]
            new = jax.tree.map(lambda new, old: _where(relabel, new, old), goal, desired)
            return {**observation, self.desired_key: new}

        def zeros(leaf: jax.Array) -> jax.Array:  # as at FIRST, where the transition is real
            return _where(real, jnp.zeros_like(leaf), leaf)

        kinds = timestep.step_type.dtype
        starts: TimeStep = jax.tree.map(lambda leaf: leaf[:-1], timestep)
        starts = starts._replace(
            step_type=jnp.where(real, StepType.FIRST, StepType.LAST).astype(kinds),
            reward=zeros(starts.reward),
            discount=jnp.ones_like(discount),
            observation=relabelled(starts.observation),
            prev_action=jax.tree.map(zeros, starts.prev_action),
        )
        ends: TimeStep = jax.tree.map(lambda leaf: leaf[1:], timestep)
        ends = ends._replace(
            step_type=jnp.full(end.shape, StepType.LAST, kinds),
            reward=_where(relabel, reward, ends.reward),
            discount=discount,
            observation=relabelled(ends.observation),
        )
        pairs = {name: jax.tree.map(_pairs, getattr(batch, name)) for name in TIME_FIELDS}
        return batch._replace(**{**pairs, "timestep": jax.tree.map(_interleave, starts, ends)})


def last_rows(step_type: jax.typing.ArrayLike) -> jax.Array:
    """Returns, for every step, the last row of its episode's part of the unroll.

    Args:
      step_type: [T + 1, B].

    Returns:
      int32 [T + 1, B].
    """
    step_type = jnp.asarray(step_type)
    rows = jnp.broadcast_to(
        jnp.arange(step_type.shape[0], dtype=jnp.int32)[:, None], step_type.shape
    )
    is_first, is_last = step_type == StepType.FIRST, step_type == StepType.LAST
    ends = is_last.at[:-1].set(is_last[:-1] | is_first[1:]).at[-1].set(True)
    return jax.lax.cummin(jnp.where(ends, rows, len(rows)), axis=0, reverse=True)


def _pairs(leaf: Any) -> jax.Array:
    """Returns `[2 T, B, ...]`, the steps at both ends of each transition of `[T + 1, B, ...]`."""
    leaf = jnp.asarray(leaf)
    return _interleave(leaf[:-1], leaf[1:])


def _interleave(even: jax.Array, odd: jax.Array) -> jax.Array:
    """Returns `[2 T, B, ...]` with the rows of two arrays `[T, B, ...]` in turn."""
    return jnp.stack([even, odd], axis=1).reshape(2 * len(even), *even.shape[1:])


def _at(leaf: jax.Array, row: jax.Array) -> jax.Array:
    """Returns `leaf[row[t, b], b]`, [T, B, ...]."""
    return jnp.take_along_axis(leaf, row.reshape(*row.shape, *[1] * (leaf.ndim - 2)), axis=0)


def _where(mask: jax.Array, new: jax.Array, old: jax.Array) -> jax.Array:
    """Selects by a mask [T, B] between leaves [T, B, ...], in the old one's dtype."""
    mask = mask.reshape(*mask.shape, *[1] * (old.ndim - 2))
    return jnp.where(mask, new, old).astype(old.dtype)
