"""Schedules of exploration: a number that follows from how much was acted or learned."""

import itertools
import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from distrl.agents.settings import SavedSettings
from distrl.errors import ConfigError
from distrl.field_checks import check_choice, check_count, check_function

SHAPES = ("linear", "exponential", "piecewise")
_CHECKED_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)  # shares at which a function's values are checked


MOST_UPDATES = 2**30  # updates that a schedule may last


def next_count(updates: jax.Array, period: int = 1) -> jax.Array:
    """Returns a number of updates after one more, int32, which never overflows.

    Near the end of int32 it goes back by a multiple of `period`, to more than `MOST_UPDATES`: what
    is due every `period` updates stays so, and schedules stay at their ends.
    """
    last = jnp.iinfo(jnp.int32).max
    back = (last - MOST_UPDATES) // period * period
    return jnp.where(updates == last, last - back, updates) + 1


class Schedule(SavedSettings):
    """A value that goes from `first` to `last` within `steps` or `updates`, and stays there.

    Its share, from 0 to 1, is how much of these is over. With `function` the value is the
    function's of the share, which exceeds 1 later. Subclasses are dataclasses with the fields below
    and `function`.

    Attributes:
      shape: "linear"; "exponential": the value changes by the same factor in each step;
        "piecewise": linear between `values`.
      at: for "piecewise", shares of `steps` or `updates`, which rise between 0 and 1.
      values: for "piecewise", the schedule's value at each of `at`.
      function: a function of your own instead of all these, from the share of `steps` or
        `updates` that is over (more than 1 later) to the value. With `updates` JAX traces it.
    """

    BEFORE: ClassVar[dict[str, Any]] = {"shape": "linear"}
    PREFIX: ClassVar[str]  # prefix of the settings' names in messages

    shape: str
    steps: int
    updates: int | None
    at: tuple[float, ...] | None
    values: tuple[float, ...] | None
    function: Any

    def _check_schedule(self, first: float, last: float, most: float) -> None:
        """Refuses settings that cannot work. Args: most: the largest value that is allowed."""
        check_choice(self, "shape", SHAPES, self.PREFIX)
        check_count(self, "steps", self.PREFIX)
        if self.updates is not None:
            check_count(self, "updates", self.PREFIX)
            if self.updates > MOST_UPDATES:
                raise ConfigError(
                    f"{self.PREFIX}.updates: expected at most 2**30 updates, got {self.updates}"
                )
        check_function(self, "function", "(share)", self.PREFIX)
        if self.function is not None:
            self._check_function(most)
            return
        if self.shape == "exponential" and not (first > 0 and last > 0):
            raise ConfigError(
                f"{self.PREFIX}.shape=exponential goes from {first:g} to {last:g}, and both must "
                "be above 0: no factor leads to 0; take a small number, or shape=linear"
            )
        if self.shape == "piecewise":
            self._check_points(most)
        elif self.at is not None or self.values is not None:
            raise ConfigError(
                f"{self.PREFIX}.at and .values are for shape=piecewise, not for {self.shape}"
            )

    def _check_function(self, most: float) -> None:
        """Refuses a function with a value that is not allowed, at a share of at most 1.

        JAX traces it, which initialises no backend. Values computed with JAX are then unknown.
        """
        want = "a number of at least 0" if math.isinf(most) else f"a number from 0 to {most:g}"
        name = f"{self.PREFIX}.function"

        def evaluate(share: jax.Array) -> Any:
            for at in _CHECKED_SHARES:
                value = self.function(at)
                if isinstance(value, jax.core.Tracer):
                    continue
                if np.shape(value) != () or not 0 <= float(value) <= most:
                    raise ConfigError(f"{name}: expected {want}, got {value!r} for share {at:g}")
            return self.function(share) if self.updates is not None else 0.0

        try:
            result = jax.eval_shape(evaluate, jax.ShapeDtypeStruct((), np.float32))
        except ConfigError:
            raise
        except Exception as error:
            if isinstance(error, jax.errors.JAXTypeError) and self.updates is None:
                return  # it is not traced when steps are counted
            line = f"{type(error).__name__}: {error}".strip().splitlines()[0]
            traced = "JAX can trace it" if self.updates is not None else "a share is a number"
            raise ConfigError(
                f"{name}: it must give {want} for a share; {traced}; {line}"
            ) from error
        if getattr(result, "shape", ()) != ():
            raise ConfigError(f"{name}: expected {want}, got shape {list(result.shape)}")

    def _check_points(self, most: float) -> None:
        at, values = self.at, self.values
        if not (isinstance(at, tuple) and isinstance(values, tuple) and len(at) == len(values) > 0):
            raise ConfigError(
                f"{self.PREFIX}.shape=piecewise needs as many values as shares, at least one, for "
                f"example at=(0.1,) and values=(0.2,); got at={at!r} and values={values!r}"
            )
        ends = [0.0, *at, 1.0]
        if not all(before < after for before, after in itertools.pairwise(ends)):
            raise ConfigError(
                f"{self.PREFIX}.at: expected shares that rise between 0 and 1, got {at!r}"
            )
        if not all(math.isfinite(value) and 0 <= value <= most for value in values):
            raise ConfigError(
                f"{self.PREFIX}.values: expected numbers from 0 to {most:g}, got {values!r}"
            )

    def _value(self, first: float, last: float, count: Any, xp: Any) -> Any:
        """Returns the value after a count of updates or steps.

        Args:
          first, last: the values at the ends.
          count: a number, or with `jnp` a traced one.
          xp: the module that calculates: `numpy` or `jax.numpy`.
        """
        share = count / (self.steps if self.updates is None else self.updates)
        if self.function is not None:
            return self.function(share)
        share = xp.minimum(share, 1.0)
        if self.shape == "exponential":
            return first * (last / first) ** share
        if self.shape == "piecewise":
            assert self.at is not None and self.values is not None
            ends = xp.asarray([0.0, *self.at, 1.0]), xp.asarray([first, *self.values, last])
            return xp.interp(share, *ends)
        return first + (last - first) * share

    def initial_value(self, first: float, last: float) -> jax.Array:
        """Returns the value before anything is counted, a float32 scalar."""
        start = first if self.function is None else self.function(0.0)
        return jnp.asarray(start, jnp.float32)

    def value_after_updates(self, first: float, last: float, updates: Any, value: Any) -> jax.Array:
        """Returns the value after a number of updates: `value` itself if steps are counted."""
        if self.updates is None:
            return value
        count = jnp.asarray(updates, jnp.float32)
        return jnp.asarray(self._value(first, last, count, jnp), jnp.float32)

    def value_after_env_steps(self, first: float, last: float, env_steps: int) -> np.float32 | None:
        """Returns the value after a number of steps; None if updates are counted."""
        if self.updates is not None:
            return None
        return np.float32(self._value(first, last, env_steps, np))
