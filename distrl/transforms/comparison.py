"""Checks that a transform gives the same for acting and for learning."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from distrl import specs
from distrl.agents.agent import Agent
from distrl.errors import ConfigError
from distrl.random_values import random_steps
from distrl.replay.config import ReplayConfig
from distrl.specs import EnvironmentSpec
from distrl.transforms import TRANSFORMS
from distrl.transforms.agent import TransformedAgent
from distrl.transforms.base import Transform
from distrl.transforms.checks import OTHERS, check_same, check_step, check_unroll, has_step
from distrl.types import TIME_FIELDS, Array, Nest, State, StepType, TimeStep, Trajectory

_STREAMS = 4
_LEAD = 4  # rows before the first unroll, so that it begins within episodes
_ROWS = 12  # rows that are compared at least
_KINDS = {StepType.FIRST: "FIRST", StepType.MID: "MID", StepType.LAST: "LAST"}
# The compiler may round differently: in 1 of 1000 numbers, to the other side of a threshold.
_TOLERANCE, _SHARE = 1e-3, 1e-3


def check_own_transforms(agent: Agent, replay: ReplayConfig, struct: Trajectory) -> None:
    """Checks an agent's transforms before it learns, except the package's own.

    It compiles two small functions for each transform.

    Args:
      agent: the agent, behind its transforms if it has any.
      replay: the table's settings.
      struct: shapes and dtypes of what is stored, for one stream at one step.

    Raises:
      ConfigError: see `check_transform`.
    """
    if not isinstance(agent, TransformedAgent):
        return
    for transform, env_spec in agent.transforms:
        if type(transform) not in TRANSFORMS.values():
            check_transform(
                transform,
                env_spec,
                unroll_length=replay.unroll_length,
                whole_episodes=replay.whole_episodes,
                extras=struct.extras,
            )


def check_transform(
    transform: Transform,
    env_spec: EnvironmentSpec,
    *,
    unroll_length: int = 5,
    whole_episodes: bool = False,
    extras: Nest = (),
    seed: int = 0,
) -> None:
    """Compares a transform's `step` with its `unroll` on a short random trajectory.

    Observations, actions and rewards are random, within their bounds; episodes of 1 to 6 steps end
    in both ways, and unrolls begin and end within them. The statistics are those of such data.

    What `unroll` draws from its key is not compared, nor is a transform for learning only: one
    whose `step` changes nothing.

    Args:
      transform: the transform.
      env_spec: the spec before it.
      unroll_length: T of the unrolls.
      whole_episodes: each unroll is one episode, as for `ReplayConfig.whole_episodes`.
      extras: nest of specs of the agent's extras, if the transform uses them.
      seed: seed of the random numbers.

    Raises:
      ConfigError: shapes or dtypes are not what the spec or the initial state or statistics say;
        another field of the time step than observation and reward is changed; or `unroll` gives
        something else than `step`, with the first place where it does.
    """
    name, after = transform.name, transform.spec(env_spec)
    random = np.random.default_rng(seed)
    lead = 0 if whole_episodes else _LEAD
    count = 1 if whole_episodes else -(-_ROWS // unroll_length)
    starts = [lead + k * unroll_length for k in range(count)]
    length = starts[-1] + unroll_length + 1
    episode = unroll_length if whole_episodes else None
    batch = random_steps(random, env_spec, extras, length, _STREAMS, episode)
    statistics = _statistics(transform, env_spec, batch)

    @jax.jit
    def unroll(state: State, rng: Array, batch: Trajectory) -> TimeStep:
        learned = transform.unroll(statistics, state, rng, batch)
        check_unroll(transform, batch, learned, after)
        return learned.timestep

    def window(start: int) -> Trajectory:
        return _rows(batch, slice(start, start + unroll_length + 1))

    initial = transform.initial_state(env_spec, _STREAMS)
    if not has_step(transform):
        jax.eval_shape(unroll, initial, _key(0), window(0))
        return
    acted, states = _acted(transform, statistics, initial, batch.timestep, after)
    raw = batch.timestep._replace(env_id=())
    if _same(raw, acted):
        return
    for part in OTHERS:
        _compare(
            getattr(raw, part),
            getattr(acted, part),
            raw.step_type,
            f"transforms: {name} must leave the {part} as it is, unless it is for learning only",
        )
    for start in starts:
        now, want = window(start), _rows(acted, slice(start, start + unroll_length + 1))
        learned, other = (unroll(states[start], _key(k), now) for k in range(2))
        for part in ("observation", "reward", *OTHERS):
            got = getattr(learned, part)
            drawn = not _same(got, getattr(other, part))
            if not drawn:
                _compare(
                    getattr(want, part),
                    got,
                    now.timestep.step_type,
                    f"transforms: {name}.unroll gives another {part} than {name}.step does for the "
                    "same steps",
                )


def _acted(
    transform: Transform, statistics: Nest, initial: State, steps: TimeStep, after: EnvironmentSpec
) -> tuple[TimeStep, list[State]]:
    """Returns the results of `step` for steps `[length, B]`, and the state before each."""

    @jax.jit
    def act(state: State, step: TimeStep) -> tuple[TimeStep, State]:
        first = step.step_type == StepType.FIRST  # where the inferencer resets the state
        state = jax.tree.map(
            lambda old, new: jnp.where(first.reshape(-1, *[1] * (new.ndim - 1)), new, old),
            state,
            initial,
        )
        seen, new = transform.step(statistics, state, step)
        check_step(transform, step, seen, after)
        check_same(f"{transform.name}.step", "state", initial, new)
        return seen._replace(env_id=(), env_info=()), new

    ids = np.arange(_STREAMS, dtype=np.int32)
    state, states, rows = initial, [], []
    for t in range(len(steps.step_type)):
        states.append(state)
        seen, state = act(state, _rows(steps, t)._replace(env_id=ids))
        rows.append(seen)
    return jax.tree.map(lambda *leaves: np.stack(leaves), *rows), states


def _statistics(transform: Transform, env_spec: EnvironmentSpec, batch: Trajectory) -> Nest:
    """Returns the statistics of some data."""
    initial = transform.initial_statistics(env_spec)
    if not jax.tree.leaves(initial):
        return ()
    new = jax.jit(transform.batch_statistics)(batch)
    merged = jax.jit(transform.merge_statistics)(initial, new)
    check_same(f"{transform.name}.merge_statistics", "statistics", initial, merged)
    return merged


def _rows(nest: Any, rows: int | slice) -> Any:
    """Returns some rows of time steps, or of those fields of a trajectory that have rows."""
    if not isinstance(nest, Trajectory):
        return jax.tree.map(lambda leaf: leaf[rows], nest)
    return nest._replace(**{name: _rows(getattr(nest, name), rows) for name in TIME_FIELDS})


def _key(seed: int) -> npt.NDArray[np.uint32]:
    return np.array([0, seed], np.uint32)


def _same(one: Nest, other: Nest) -> bool:
    if jax.tree.structure(one) != jax.tree.structure(other):
        return False
    return all(np.array_equal(*pair) for pair in zip(jax.tree.leaves(one), jax.tree.leaves(other)))


def _compare(want: Nest, got: Nest, step_type: npt.NDArray[Any], message: str) -> None:
    """Raises ConfigError where arrays `[T, B, ...]` differ by more than rounding."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(want)
    for (path, leaf), other in zip(leaves, jax.tree.leaves(got), strict=True):
        right, value = (np.asarray(array, np.float64) for array in (leaf, other))
        size = np.abs(np.where(np.isfinite(right), right, 0)).max(axis=(0, 1))
        wrong = ~np.isclose(value, right, _TOLERANCE, _TOLERANCE * size, equal_nan=True)
        if np.count_nonzero(wrong) <= _SHARE * wrong.size:
            continue
        at = tuple(np.argwhere(wrong)[0])
        part = f" in {specs.path_name(path)}" if path else ""
        raise ConfigError(
            f"{message}{part}: {value[at]:g} and not {right[at]:g} in row {at[0]} of stream "
            f"{at[1]} ({_KINDS[int(step_type[at[:2]])]}); {np.count_nonzero(wrong)} of "
            f"{wrong.size} numbers differ"
        )
