"""Checks of an environment's return values, fast enough for every step."""

from typing import Any

import jax
import numpy as np
import numpy.typing as npt
from dm_env import specs as dm_specs

from distrl import specs
from distrl.errors import SpecError
from distrl.types import Nest, StepType

_FIRST, _MID, _LAST = StepType.FIRST, StepType.MID, StepType.LAST
_NUMBERS = (int, np.int32, np.int64)
_MAX = float(np.finfo(np.float32).max)


class SpecViolation(SpecError):
    """An environment returned something that violates its spec."""


class LeafCheck:
    """Checks one array.

    The shape must be the spec's, and floats finite. Floats of another width are cast, and so are
    values that the spec's dtype can hold: any integer in its range, and for floats those of few
    bits. A DiscreteArray's value must be one of its choices; other bounds are not checked.
    """

    def __init__(self, name: str, spec: Any, check_finite: bool):
        """Args:
        name: name of the array, for messages.
        spec: the array's spec.
        check_finite: refuse NaN and infinity.
        """
        self._name, self._shape, self._dtype = name, tuple(spec.shape), np.dtype(spec.dtype)
        self._finite = check_finite and self._dtype.kind == "f"
        self._largest = float(np.finfo(self._dtype).max) if self._finite else 0.0
        discrete = isinstance(spec, dm_specs.DiscreteArray)
        self._num_values = int(spec.num_values) if discrete else None

    def __call__(self, value: Any) -> npt.NDArray[Any]:
        """Returns `value` as an array of the spec's shape and dtype; itself if it is one.

        Raises:
          SpecViolation: it violates the spec.
        """
        if self._num_values is not None and type(value) in _NUMBERS:  # faster than an array
            if not 0 <= value < self._num_values:
                raise SpecViolation(specs.no_choice(self._name, self._num_values, value))
            return np.array(value, self._dtype)
        array = value if type(value) is np.ndarray else self.array(value)
        if array.shape != self._shape:
            raise SpecViolation(
                f"{self._name}: expected {self._expected()}, got {_show(value, array)}"
            )
        # The sum of squares is cheap, and small only if all values are finite, also after a cast.
        dtype, given = array.dtype, array
        if self._finite and dtype.kind == "f" and np.vdot(array, array) < self._largest:
            return array if dtype is self._dtype else array.astype(self._dtype, copy=False)
        if dtype != self._dtype:
            array = self._cast(value, array)
        if self._finite:
            what = not_finite(self._name, array, given)
            if what is not None:
                raise SpecViolation(what)
        if self._num_values is not None and not 0 <= array.item() < self._num_values:
            raise SpecViolation(specs.no_choice(self._name, self._num_values, array))
        return array

    def array(self, value: Any) -> npt.NDArray[Any]:
        """Returns `value` as an array, of whatever shape and dtype; itself if it is one.

        Raises:
          SpecViolation: NumPy cannot make an array of numbers of it.
        """
        try:
            array = np.asarray(value)
        except ValueError as error:  # a ragged list
            raise SpecViolation(f"{self._name}: expected {self._expected()}, got {error}") from None
        if array.dtype == object:
            raise SpecViolation(
                f"{self._name}: expected {self._expected()}, got {_show(value, array)}"
            )
        return array

    def _expected(self) -> str:
        return f"{self._dtype}{list(self._shape)}"

    def _cast(self, value: Any, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Returns the array with the spec's dtype, if that can hold its values."""
        kind, given = self._dtype.kind, array.dtype.kind
        if kind == "f":
            fits = given == "f" or np.can_cast(array.dtype, self._dtype)
        else:
            fits = kind in "iu" and given in "iub"
        if not fits:
            raise SpecViolation(
                f"{self._name}: expected {self._expected()}, got {_show(value, array)}"
            )
        if kind == "f":
            with np.errstate(over="ignore"):  # an infinite result is refused
                return array.astype(self._dtype)
        cast = array.astype(self._dtype)
        if not (cast == array).all():
            raise SpecViolation(
                f"{self._name}: a value of the {array.dtype} does not fit {self._dtype}"
            )
        return cast


class NestCheck:
    """Checks the structure of a nest, and every leaf."""

    def __init__(self, name: str, spec: Nest, check_finite: bool):
        """Args:
        name: name of the nest, for messages.
        spec: nest of specs.
        check_finite: refuse NaN and infinity.
        """
        self._structure = jax.tree.structure(specs.struct(spec))
        leaves, _ = jax.tree_util.tree_flatten_with_path(spec, is_leaf=specs.is_spec)
        self._name = name
        self._checks = [
            LeafCheck(name + jax.tree_util.keystr(path), leaf, check_finite)
            for path, leaf in leaves
        ]
        single = self._structure == jax.tree.structure(0)
        self._single = self._checks[0] if single else None
        self._empty = not leaves

    def __call__(self, value: Nest) -> list[npt.NDArray[Any]]:
        """Returns the leaves in the order of `jax.tree.leaves`, as `LeafCheck` returns them.

        Raises:
          SpecViolation: a leaf or the structure violates the spec.
        """
        if self._single is not None:
            return [self._single(value)]
        if self._empty:
            if value:
                raise SpecViolation(f"{self._name}: the spec names nothing, got {value!r:.200}")
            return []
        try:
            leaves = self._structure.flatten_up_to(value)  # a fraction of the time of tree_flatten
        except ValueError:
            raise SpecViolation(
                f"{self._name}: expected the structure {self._structure}, got "
                f"{jax.tree.structure(value)}"
            ) from None
        return [check(leaf) for check, leaf in zip(self._checks, leaves)]


class RewardCheck:
    """Checks a reward: any real number, or a vector of them if the spec has a shape."""

    def __init__(self, spec: Any, check_finite: bool):
        """Args: spec: the reward's spec. check_finite: refuse NaN and infinity."""
        self._shape, self._finite = tuple(spec.shape), check_finite

    def __call__(self, value: Any) -> Any:
        """Returns the reward as a float, or as a float32 array.

        Raises:
          SpecViolation: it is not a number, has another shape, or is not finite.
        """
        if type(value) is float and not self._shape and -_MAX < value < _MAX:
            return value
        given = np.asarray(value)
        if given.shape != self._shape or given.dtype.kind not in "fiub":
            if type(value) is not int or self._shape:
                raise SpecViolation(
                    f"reward: expected float32{list(self._shape)}, got {_show(value, given)}"
                )
            given = np.asarray(float(max(-2 * _MAX, min(value, 2 * _MAX))))  # beyond 64 bits
        with np.errstate(over="ignore"):
            array = given.astype(np.float32)
        if self._finite and not np.isfinite(array).all():
            if np.isfinite(given).all():
                raise SpecViolation(_too_large("reward", value, array.dtype))
            raise SpecViolation(f"reward: expected finite numbers, got {value}")
        return array


def check_first(step_type: int) -> None:
    """Raises SpecViolation if a step of `reset` is not FIRST."""
    if step_type != _FIRST:
        raise SpecViolation(f"step_type: reset() gave {step_type}, expected FIRST ({_FIRST})")


def check_last(step_type: int, discount: Any) -> None:
    """Raises SpecViolation if a step is not LAST with a discount of 0 or 1.

    For every step after FIRST except those of the middle, MID with discount 1.
    """
    if step_type == _LAST:
        if discount != 0 and discount != 1:
            raise SpecViolation(
                f"discount: expected 0 (a true end) or 1 (a time limit) at LAST, got {discount}; "
                "gamma is agent.discount"
            )
    elif step_type != _MID:
        raise SpecViolation(
            f"step_type: step() gave {step_type}, expected MID ({_MID}) or LAST ({_LAST})"
        )
    else:
        raise SpecViolation(
            f"discount: expected 1 in the middle of an episode, got {discount}; distrl takes 0 "
            "(at a true end, which is LAST) and 1; gamma is agent.discount"
        )


def not_finite(
    name: str, array: npt.NDArray[Any], given: npt.NDArray[Any] | None = None
) -> str | None:
    """Returns what is wrong with an array, or number, that is not finite; None if it is.

    Args:
      name: name of the array, for messages.
      array: the array.
      given: the value that was cast to it; None: the array itself.
    """
    array = np.asarray(array)
    wrong = ~np.isfinite(array)
    if not wrong.any():
        return None
    if given is not None and (lost := wrong & np.isfinite(given)).any():
        return _too_large(name, given[lost][0], array.dtype)
    return (
        f"{name}: expected finite numbers, got {wrong.sum()} of {array.size} that are not; "
        f"the first is {array[wrong][0]}"
    )


def _too_large(name: str, value: Any, dtype: Any) -> str:
    limit, text = float(np.finfo(dtype).max), str(value)
    text = text if len(text) <= 60 else f"{text[:57]}..."
    return f"{name}: expected finite numbers, in {dtype} at most {limit:.6g}, got {text}"


def _show(value: Any, array: npt.NDArray[Any]) -> str:
    if array.dtype == object:
        return f"a {type(value).__name__}"
    return f"{array.dtype}{list(array.shape)}"
