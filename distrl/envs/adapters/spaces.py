"""Conversion of gymnasium's spaces and dm_env's specs to distrl's specs, and of their values.

Spaces are recognised by the names of their classes, so that neither gymnasium nor its predecessor
gym has to be installed, or imported if an environment does not use it.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from dm_env import specs as dm_specs

from distrl import specs
from distrl.envs.adapters.conform import LeafCheck, SpecViolation
from distrl.errors import ConfigError
from distrl.types import Nest

Reader = Callable[[Any], Nest]  # the environment's value -> distrl's
Writer = Callable[[Nest], Any]  # distrl's action -> the environment's

_NARROW = {
    np.dtype(np.float64): np.dtype(np.float32),
    np.dtype(np.int64): np.dtype(np.int32),
    np.dtype(np.uint64): np.dtype(np.uint32),
}
_LARGEST = np.finfo(np.float32).max
# The usual types of arrays and numbers: looking up a type takes less time than `isinstance`.
_USUAL = (np.ndarray, int, float, np.int64, np.float64, np.int32, np.float32)
_KINDS = ("Box", "Discrete", "MultiDiscrete", "MultiBinary", "Dict", "Tuple")


def narrow(dtype: Any) -> np.dtype[Any]:
    """Returns the type of 32 bits for one of 64, as JAX computes with; others unchanged."""
    return _NARROW.get(np.dtype(dtype), np.dtype(dtype))


def space_spec(space: Any, where: str) -> Nest:
    """Returns the spec of a gymnasium space: a dict for Dict, a tuple for Tuple, else a leaf.

    Discrete values count from 0, whatever the space's `start`.

    Args:
      space: a space of gymnasium.
      where: name of the value, for messages, e.g. "observation".

    Raises:
      ConfigError: the space's values have no fixed shape (Text, Sequence, Graph, OneOf), or the
        names of a Dict have no order.
    """
    kind = _kind(space)
    if kind == "Dict":
        _check_names(space.spaces, where)
        return {k: space_spec(v, f"{where}[{k!r}]") for k, v in space.spaces.items()}
    if kind == "Tuple":
        return tuple(space_spec(v, f"{where}[{i}]") for i, v in enumerate(space.spaces))
    if kind == "Box":
        return array_spec(space.shape, space.dtype, space.low, space.high, where)
    if kind == "MultiBinary":
        return dm_specs.BoundedArray(space.shape, np.int8, 0, 1, where)
    if kind == "MultiDiscrete":
        shape, high = np.shape(space.nvec), np.asarray(space.nvec) - 1
        return dm_specs.BoundedArray(shape, np.int32, np.zeros(shape), high, where)
    if kind == "Discrete":
        return _discrete(int(space.n), where)
    raise ConfigError(
        f"{where}: a space of kind {type(space).__name__} has no arrays of one shape; distrl "
        f"takes {', '.join(_KINDS)}: leave it out or encode it, for example with "
        "gymnasium.wrappers.FilterObservation or TransformObservation"
    )


def dm_spec(spec: Any, where: str) -> Nest:
    """Returns a nest of dm_env specs with dtypes that distrl computes with.

    Raises:
      ConfigError: a leaf is not an array, or the names of a mapping have no order.
    """
    if isinstance(spec, Mapping):
        _check_names(spec, where)
        return {k: dm_spec(v, f"{where}[{k!r}]") for k, v in spec.items()}
    if isinstance(spec, (list, tuple)):
        parts = [dm_spec(v, f"{where}[{i}]") for i, v in enumerate(spec)]
        return getattr(type(spec), "_make", type(spec))(parts)
    if isinstance(spec, dm_specs.StringArray) or not isinstance(spec, dm_specs.Array):
        raise ConfigError(
            f"{where}: expected dm_env's Array, BoundedArray or DiscreteArray, got {spec!r}"
        )
    if isinstance(spec, dm_specs.DiscreteArray):
        return _discrete(spec.num_values, spec.name or where)
    if isinstance(spec, dm_specs.BoundedArray):
        return array_spec(spec.shape, spec.dtype, spec.minimum, spec.maximum, spec.name or where)
    return dm_specs.Array(spec.shape, narrow(spec.dtype), spec.name or where)


def array_spec(shape: Any, dtype: Any, low: Any, high: Any, name: str) -> dm_specs.Array:
    """Returns the spec of an array; bounded if one of its bounds is finite.

    A bound that float32 cannot hold is rounded inwards: an action at the bound stays legal. Where
    no number of float32 is between two bounds, both are the nearest one. The largest numbers of
    float32 and float64 mean that there is no bound.
    """
    narrowed = narrow(dtype)
    low, high = (np.broadcast_to(np.asarray(bound), shape) for bound in (low, high))
    if narrowed == np.float32:
        low = np.where(low <= -_LARGEST, -np.inf, low)
        high = np.where(high >= _LARGEST, np.inf, high)
    if not (np.isfinite(low).any() or np.isfinite(high).any()):
        return dm_specs.Array(shape, narrowed, name)
    if narrowed == np.float32:
        low32, high32 = low.astype(np.float32), high.astype(np.float32)
        inner_low = np.where(low32 < low, np.nextafter(low32, np.float32(np.inf)), low32)
        inner_high = np.where(high32 > high, np.nextafter(high32, np.float32(-np.inf)), high32)
        between = inner_low <= inner_high
        low, high = np.where(between, inner_low, low32), np.where(between, inner_high, low32)
    elif narrowed in (np.int32, np.uint32):
        bounds = np.iinfo(narrowed)
        low, high = np.clip(low, bounds.min, bounds.max), np.clip(high, bounds.min, bounds.max)
    return dm_specs.BoundedArray(shape, narrowed, low, high, name)


def starts(space: Any) -> Nest:
    """Returns what has to be added to distrl's values to get those of a gymnasium space.

    A nest like that of `space_spec`, with an int or int32 array instead of each spec.
    """
    kind = _kind(space)
    if kind == "Dict":
        return {k: starts(v) for k, v in space.spaces.items()}
    if kind == "Tuple":
        return tuple(starts(v) for v in space.spaces)
    if kind == "MultiDiscrete" and np.any(getattr(space, "start", 0)):
        return np.asarray(space.start, np.int32)
    return int(getattr(space, "start", 0)) if kind == "Discrete" else 0


def reader(space: Any, where: str) -> Reader:
    """Returns the conversion of a gymnasium space's values to distrl's.

    Its results have the structure of `space_spec`, with an array or a number at each leaf; a list
    becomes an array. Their shapes and dtypes are not checked here.

    It raises SpecViolation for another structure, for values that cannot become an array, and for
    numbers that a MultiDiscrete or MultiBinary does not have: its spec is that of a Box of
    integers, whose bounds are not checked.
    """
    kind = _kind(space)
    if kind == "Discrete" and starts(space):
        return _discrete_reader(space, where)
    if kind in ("MultiDiscrete", "MultiBinary"):
        return _bounded_reader(space, where)
    if kind == "Dict":
        parts = {k: reader(v, f"{where}[{k!r}]") for k, v in space.spaces.items()}
        return _dict_reader(parts, where)
    if kind == "Tuple":
        rows = [reader(v, f"{where}[{i}]") for i, v in enumerate(space.spaces)]
        return _tuple_reader(rows, tuple, where)
    return leaf_reader(space_spec(space, where), where)


def dm_reader(spec: Any, where: str) -> Reader:
    """Returns the conversion of dm_env values to distrl's; see `reader`.

    Args:
      spec: nest of specs: the environment's, or what `dm_spec` makes of them.
      where: name of the value, for messages.
    """
    if isinstance(spec, Mapping):
        return _dict_reader({k: dm_reader(v, f"{where}[{k!r}]") for k, v in spec.items()}, where)
    if isinstance(spec, (list, tuple)):
        parts = [dm_reader(v, f"{where}[{i}]") for i, v in enumerate(spec)]
        return _tuple_reader(parts, getattr(type(spec), "_make", type(spec)), where)
    return leaf_reader(spec, where)


def leaf_reader(spec: Any, where: str) -> Reader:
    """Returns the conversion of one value to an array; arrays and numbers stay as they are.

    Args:
      spec: its spec.
      where: name of the value, for messages.
    """
    array = LeafCheck(where, spec, False).array

    def read(value: Any) -> Any:
        if type(value) in _USUAL or isinstance(value, (np.generic, np.ndarray, bool)):
            return value
        return array(value)

    return read


def writer(space: Any, where: str) -> Writer:
    """Returns the conversion of distrl's actions to a gymnasium space's."""
    kind, dtype = _kind(space), getattr(space, "dtype", None)
    if kind == "Discrete":
        start, scalar = int(getattr(space, "start", 0)), np.dtype(dtype).type
        return (lambda action: scalar(int(action) + start)) if start else scalar
    if kind == "MultiDiscrete":
        first = np.asarray(getattr(space, "start", 0))
        return lambda action: (action + first).astype(dtype)
    if kind == "Dict":
        parts = {k: writer(v, f"{where}[{k!r}]") for k, v in space.spaces.items()}
        return lambda action: {name: part(action[name]) for name, part in parts.items()}
    if kind == "Tuple":
        rows = [writer(v, f"{where}[{i}]") for i, v in enumerate(space.spaces)]
        return lambda action: tuple(part(a) for part, a in zip(rows, action, strict=True))
    return lambda action: np.asarray(action, dtype)


def dm_writer(spec: Any) -> Writer:
    """Returns the conversion of distrl's actions to those of a nest of dm_env specs."""
    if isinstance(spec, Mapping):
        parts = {k: dm_writer(v) for k, v in spec.items()}
        return lambda action: {name: part(action[name]) for name, part in parts.items()}
    if isinstance(spec, (list, tuple)):
        rows = [dm_writer(v) for v in spec]
        make = getattr(type(spec), "_make", type(spec))  # a named tuple has `_make`
        return lambda action: make(part(a) for part, a in zip(rows, action, strict=True))
    dtype = np.dtype(spec.dtype)
    if not spec.shape:
        return dtype.type
    return lambda action: np.asarray(action, dtype)


def _kind(space: Any) -> str:
    names = [base.__name__ for base in type(space).__mro__]
    return next((kind for kind in _KINDS if kind in names), "")


def _check_names(mapping: Mapping[Any, Any], where: str) -> None:
    try:
        sorted(mapping)
    except TypeError:
        raise ConfigError(
            f"{where}: the names of a dict must be of one type, such as str, got {list(mapping)}"
        ) from None


def _discrete(num_values: int, name: str) -> dm_specs.DiscreteArray:
    if num_values > 2**31 - 1:
        raise ConfigError(f"{name}: {num_values} values; distrl's integers have 32 bits")
    return dm_specs.DiscreteArray(num_values, np.int32, name)


def _discrete_reader(space: Any, where: str) -> Reader:
    """Returns a reader of a Discrete with a start, which it subtracts; floats are left as given."""
    array, start = LeafCheck(where, space_spec(space, where), False).array, int(space.start)

    def read(value: Any) -> Any:
        if type(value) is int:
            return value - start
        given = array(value)
        # Python's numbers, since a small dtype may not hold the difference.
        return given.item() - start if given.ndim == 0 and given.dtype.kind in "iub" else given

    return read


def _bounded_reader(space: Any, where: str) -> Reader:
    """Returns a reader of MultiDiscrete or MultiBinary, which refuses numbers beyond its bounds."""
    spec, start = space_spec(space, where), starts(space)
    check, raised = LeafCheck(where, spec, False), bool(np.any(start))
    unsigned = np.dtype(f"u{spec.dtype.itemsize}")
    high = spec.maximum.astype(unsigned)

    def read(value: Any) -> Nest:
        array = check(value - start if raised else value)
        # All count from 0; as unsigned numbers, negative ones are above the upper bounds.
        if np.count_nonzero(array.view(unsigned) > high):
            specs.check_integers(array, spec, start, where)  # raises
        return array

    return read


def _dict_reader(parts: Mapping[str, Reader], where: str) -> Reader:
    """Returns a reader of mappings, which must have exactly the declared names."""
    items, names = list(parts.items()), set(parts)

    def read(value: Any) -> Nest:
        if not hasattr(value, "keys") or value.keys() != names:
            got = sorted(value, key=str) if hasattr(value, "keys") else f"a {type(value).__name__}"
            raise SpecViolation(f"{where}: expected the names {sorted(parts)}, got {got}")
        return {name: part(value[name]) for name, part in items}

    return read


def _tuple_reader(parts: list[Reader], make: Callable[[Any], Any], where: str) -> Reader:
    """Returns a reader of sequences, which must have as many parts as declared."""
    size = len(parts)

    def read(value: Any) -> Nest:
        try:
            right = len(value) == size
        except TypeError:
            right = False
        if not right:
            raise SpecViolation(f"{where}: expected a tuple of {size}, got {value!r:.200}")
        return make([part(v) for part, v in zip(parts, value)])

    return read
