"""Checks of what one environment returns, fast enough for every step."""

import math
from typing import Any

import jax
import numpy as np

from distrl import specs
from distrl.types import Nest

_MAX = float(np.finfo(np.float32).max)


class SpecViolation(ValueError):
    """What an environment returned is not what its spec says."""


class LeafCheck:
    """Of one array.

    The dtype is the spec's; or a float of another width for a float, or a signed integer of
    another width for a signed integer, which is then cast. Shapes are exact, floats finite.
    """

    def __init__(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any], check_finite: bool):
        """Args: name: for messages. Others: of the spec; whether NaN and infinity are refused."""
        self._name, self._shape, self._dtype = name, shape, dtype
        self._finite = check_finite and dtype.kind == "f"

    def __call__(self, value: Any) -> np.ndarray:
        """`value` as an array of the spec's shape and dtype; itself where it is one.

        Raises:
          Breach: it is none.
        """
        try:
            array = value if type(value) is np.ndarray else np.asarray(value)
        except ValueError as error:  # a ragged list
            raise SpecViolation(f"{self._name}: expected {self._wanted()}, got {error}") from None
        if array.shape != self._shape:
            raise SpecViolation(
                f"{self._name}: expected {self._wanted()}, got {_show(value, array)}"
            )
        if array.dtype != self._dtype:
            array = self._cast(value, array)
        # The sum of squares is cheap, and finite only if all of them are.
        if self._finite and not math.isfinite(np.vdot(array, array)):
            wrong = ~np.isfinite(array)
            if wrong.any():
                raise SpecViolation(
                    f"{self._name}: expected finite numbers, got {wrong.sum()} of {array.size} "
                    f"that are not; the first is {array[wrong][0]}"
                )
        return array

    def _wanted(self) -> str:
        return f"{self._dtype}{list(self._shape)}"

    def _cast(self, value: Any, array: np.ndarray) -> np.ndarray:
        """The array with the spec's dtype, where it is of the same kind."""
        kind = self._dtype.kind
        if array.dtype.kind != kind or kind not in "fi":
            raise SpecViolation(
                f"{self._name}: expected {self._wanted()}, got {_show(value, array)}"
            )
        with np.errstate(over="ignore"):  # an infinite result is refused
            cast = array.astype(self._dtype)
        if kind == "i" and not np.array_equal(cast, array):
            raise SpecViolation(
                f"{self._name}: a value of the {array.dtype} does not fit {self._dtype}"
            )
        return cast


class NestCheck:
    """Of a nest: its structure, and every leaf."""

    def __init__(self, name: str, spec: Nest, check_finite: bool):
        """Args: name: for messages. spec: nest of specs. check_finite: see `LeafCheck`."""
        leaves, self._structure = jax.tree_util.tree_flatten_with_path(specs.struct(spec))
        self._name = name
        self._checks = [
            LeafCheck(
                name + jax.tree_util.keystr(path), tuple(s.shape), np.dtype(s.dtype), check_finite
            )
            for path, s in leaves
        ]
        self._single = self._structure == jax.tree.structure(0)
        self._empty = not leaves

    def __call__(self, value: Nest) -> list[np.ndarray]:
        """The leaves in the order of `jax.tree.leaves`, as `LeafCheck` gives them.

        Raises:
          Breach: one of them, or the structure, is not the spec's.
        """
        if self._single:
            return [self._checks[0](value)]
        if self._empty:
            if value is not None and len(value):
                raise SpecViolation(f"{self._name}: the spec names nothing, got {value!r:.200}")
            return []
        leaves, structure = jax.tree_util.tree_flatten(value)
        if structure != self._structure:
            raise SpecViolation(
                f"{self._name}: expected the structure {self._structure}, got {structure}"
            )
        return [check(leaf) for check, leaf in zip(self._checks, leaves)]


class RewardCheck:
    """Of a reward: any real number, or a vector of them where the spec says so."""

    def __init__(self, spec: Any, check_finite: bool):
        """Args: spec: of the reward. check_finite: refuse NaN and infinity."""
        self._shape, self._finite = tuple(spec.shape), check_finite

    def __call__(self, value: Any) -> Any:
        """It as a float, or as a float32 array.

        Raises:
          Breach: it is none, has another shape, or is not finite.
        """
        if type(value) is float and not self._shape and -_MAX < value < _MAX:
            return value
        array = np.asarray(value)
        if array.shape != self._shape or array.dtype.kind not in "fiub":
            raise SpecViolation(
                f"reward: expected float32{list(self._shape)}, got {_show(value, array)}"
            )
        with np.errstate(over="ignore"):
            array = array.astype(np.float32)
        if self._finite and not np.isfinite(array).all():
            raise SpecViolation(f"reward: expected finite numbers, got {value}")
        return array


def _show(value: Any, array: np.ndarray) -> str:
    if array.dtype == object:
        return f"a {type(value).__name__}"
    return f"{array.dtype}{list(array.shape)}"
