"""Checks whether a pool keeps the contract of `distrl.envs.pool.Pool`."""

import collections
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import numpy.typing as npt
from dm_env import specs as dm_specs

from distrl import specs
from distrl.envs.pool import Environment, Pool, check_received, check_unchanged
from distrl.errors import SpecError
from distrl.random_values import random_values
from distrl.runtime.traceback_text import one_line
from distrl.types import Nest, StepType, TimeStep

_KEPT = 8  # earlier results of `recv` that are checked again
_KINDS = ("FIRST", "MID", "LAST")


def check_pool(
    make: Environment | Callable[[int, int, Sequence[int]], Pool],
    *,
    num_envs: int = 4,
    wait_num: int | None = None,
    steps: int = 1000,
    seed: int = 0,
    check_finite: bool = True,
) -> None:
    """Steps a pool with random actions, and checks everything that it returns.

    It checks structures, shapes, dtypes, environment ids, boundaries and discounts as in
    `TimeStep`'s table, the numbers of choices, whether floats are finite, `prev_action`, and that
    the arrays of an earlier `recv`, and actions that were sent, stay as they were. If the
    observation has an action mask for one choice, its actions are legal. Continuous actions may lie
    beyond their bounds, like those that policies sample.

    Args:
      make: an environment, or a function `(num_envs, wait_num, seeds)` that makes a pool, which is
        closed in the end.
      num_envs: number of environments.
      wait_num: environments that `recv` waits for; None: all, a synchronous pool.
      steps: calls of `recv`; several episodes should end in them.
      seed: seed of the actions, and of the first environment.
      check_finite: refuse NaN and infinity.

    Raises:
      SpecError: the pool breaks the contract, or no episode has ended.
    """
    made: Any = getattr(make, "make_pool", make)
    pool: Pool = made(num_envs, wait_num or num_envs, range(seed, seed + num_envs))
    try:
        _Follower(pool, np.random.default_rng(seed), check_finite).play(steps)
    finally:
        pool.close()


class _Follower:
    """Knows what each environment's next step must be."""

    def __init__(self, pool: Pool, random: np.random.Generator, check_finite: bool):
        self._pool, self._random, self._finite = pool, random, check_finite
        self._kinds = np.full(pool.num_envs, StepType.LAST)  # the last steps' types
        self._sent = specs.zeros(pool.spec.action, pool.num_envs)
        self._flying = np.ones(pool.num_envs, bool)
        self._kept: collections.deque[list[tuple[str, Any, bytes]]] = collections.deque(
            maxlen=_KEPT
        )

    def play(self, steps: int) -> None:
        ended = 0
        self._pool.start()
        for _ in range(steps):
            step = self._pool.recv()
            for arrays in self._kept:
                check_unchanged(self._pool.name, arrays)
            self._kept.append(check_received(self._pool, _received(step)))
            self._check(step)
            ended += np.count_nonzero(step.step_type == StepType.LAST)
            self._send(step)
        if not ended:
            raise SpecError(
                f"{self._pool.name}: no episode ended in {steps} steps: each must end with LAST; "
                "if these last longer, check more steps"
            )

    def _fail(self, row: Any, step: TimeStep, what: str) -> None:
        """Raises SpecError about one row of a step."""
        kind = int(step.step_type[row])
        raise SpecError(
            f"{self._pool.name}: environment {step.env_id[row]}, step type {kind}"
            f"{f' ({_KINDS[kind]})' if 0 <= kind < len(_KINDS) else ''}: {what}"
        )

    def _require(self, right: npt.NDArray[Any], step: TimeStep, what: str, value: Any) -> None:
        """Refuses a step with `what` and the row of `value`, unless `right` is true in all rows."""
        rows = np.flatnonzero(~right.reshape(len(right), -1).all(axis=1))
        if len(rows):
            shown = one_line(np.asarray(value)[rows[0]])
            self._fail(rows[0], step, f"{what} {shown:.200}")

    def _check(self, step: TimeStep) -> None:
        ids, kinds = np.asarray(step.env_id), np.asarray(step.step_type)
        name, spec = self._pool.name, self._pool.spec
        first, last = kinds == StepType.FIRST, kinds == StepType.LAST
        self._require(self._flying[ids], step, "expected environments in flight, got", ids)
        self._require((kinds >= 0) & (kinds <= 2), step, "expected 0, 1 or 2, got", kinds)
        before = self._kinds[ids]
        after_last = before == StepType.LAST
        self._require(
            first == after_last,
            step,
            "expected FIRST after LAST, whatever the action, and only there; it came after",
            np.array(_KINDS)[before],
        )
        self._require(
            (step.discount == 1) | (last & (step.discount == 0)),
            step,
            "expected a discount of 1, or 0 at LAST if the episode truly ends there, got",
            step.discount,
        )
        zero = (np.asarray(step.reward) == 0).reshape(len(ids), -1).all(axis=1)
        self._require(zero | ~first, step, "expected reward 0, got", step.reward)
        sent = jax.tree.map(lambda table: table[ids], self._sent)
        for given, action in zip(
            jax.tree.leaves(step.prev_action), jax.tree.leaves(sent), strict=True
        ):
            begins = first.reshape(-1, *[1] * (action.ndim - 1))
            want = np.where(begins, np.zeros_like(action), action)
            self._require(
                given == want,
                step,
                "expected the prev_action that was sent, 0 at FIRST, got",
                given,
            )
        if self._finite:
            for part in ("reward", "observation"):
                for leaf in jax.tree.leaves(getattr(step, part)):
                    if np.asarray(leaf).dtype.kind == "f":
                        what = f"expected a finite {part}, got"
                        self._require(np.isfinite(leaf), step, what, leaf)
        specs.check_integers(
            step.observation, spec.observation, spec.observation_start, f"observation of {name}"
        )
        self._kinds[ids] = kinds
        self._flying[ids] = False

    def _send(self, step: TimeStep) -> None:
        ids = np.asarray(step.env_id)
        action = self._action(step.observation, len(ids))
        for table, leaf in zip(jax.tree.leaves(self._sent), jax.tree.leaves(action), strict=True):
            table[ids] = leaf
        self._pool.send(action, self._pool.env_ids if not self._pool.is_async else ids)
        self._flying[ids] = True
        for table, leaf in zip(jax.tree.leaves(self._sent), jax.tree.leaves(action), strict=True):
            if not np.array_equal(table[ids], leaf):
                raise SpecError(f"{self._pool.name}: _send must not change the actions")

    def _action(self, observation: Nest, count: int) -> Nest:
        spec = self._pool.spec.action
        mask = observation.get(specs.ACTION_MASK) if isinstance(observation, dict) else None
        if mask is None or not isinstance(spec, dm_specs.DiscreteArray):
            drawn = random_values(self._random, spec, count)
            return jax.tree.map(self._beyond, spec, drawn, is_leaf=specs.is_spec)
        chances = self._random.random((count, spec.num_values)) * (np.asarray(mask) != 0)
        return np.argmax(chances, axis=1).astype(spec.dtype)

    def _beyond(self, spec: Any, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Returns the values, a quarter of those with bounds moved beyond one of them."""
        if not specs.is_clippable(spec):
            return values
        low, high = (bound.astype(np.float64) for bound in (spec.minimum, spec.maximum))
        chance = self._random.random(values.shape)
        moved = np.where(chance < 1 / 8, low - 1 - np.abs(low), values)
        moved = np.where(chance > 7 / 8, high + 1 + np.abs(high), moved)
        largest = np.finfo(spec.dtype).max
        is_usable = np.isfinite(moved) & (np.abs(moved) <= largest)
        return np.where(is_usable, moved, values).astype(spec.dtype)


def _received(step: TimeStep) -> tuple[Any, ...]:
    return (
        step.step_type, step.reward, step.discount, step.observation, step.env_id, step.env_info
    )  # fmt: skip
