"""Loads the `agent.pkl` of distrl's own agents, which older versions wrote, as plain data.

The pickle is read into records of names and arguments: no class or function that it names is
imported, called or changed. Only then are the records turned into settings, by name.
"""

import collections
import io
import pickle
from typing import Any, ClassVar

import numpy as np

from distrl.saved.plain_settings import older_settings, plain_dtype, settings_class, spec_of
from distrl.specs import EnvironmentSpec

_NUMPY = {  # before and since NumPy 2
    f"numpy.{core}.{function}"
    for core in ("core", "_core")
    for function in ("numeric._frombuffer", "multiarray._reconstruct", "multiarray.scalar")
}
_NAMES = {
    "collections.OrderedDict",
    "distrl.specs.EnvironmentSpec",
    "numpy.dtype",
    "numpy.ndarray",
    *_NUMPY,
}


class _Record:
    """An object in a pickle: its class or function's name, its arguments, and its state."""

    name: ClassVar[str]
    arguments: tuple[Any, ...]
    state: Any
    items: list[tuple[Any, Any]]

    def __new__(cls, *arguments: Any) -> "_Record":
        record = super().__new__(cls)
        record.arguments, record.state, record.items = arguments, None, []
        return record

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __setitem__(self, key: Any, value: Any) -> None:
        self.items.append((key, value))


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Returns a class of records instead of the object that is named."""
        full_name = f"{module}.{name}"
        if full_name not in _NAMES and module != "dm_env.specs":
            settings_class(full_name)
        return type("_Record", (_Record,), {"name": full_name})

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("it refers to objects elsewhere")


def load_plain(data: bytes) -> Any:
    """Loads a pickle of settings of distrl's own agents and transforms.

    Raises:
      ForeignError: it names something else.
      pickle.UnpicklingError, ValueError, LookupError, TypeError, AttributeError, EOFError: it is
        damaged.
    """
    return _settled(_Reader(io.BytesIO(data)).load())


def _settled(value: Any) -> Any:
    """Returns a value with all records replaced by what they describe."""
    if isinstance(value, (list, tuple)):
        return type(value)(_settled(part) for part in value)
    if isinstance(value, dict):
        return {_settled(key): _settled(part) for key, part in value.items()}
    if isinstance(value, _Record):
        return _made(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise ValueError(f"a value of the type {type(value).__name__}")


def _made(record: _Record) -> Any:
    name, arguments = record.name, record.arguments
    module, _, attribute = name.rpartition(".")
    if name == "collections.OrderedDict":
        return collections.OrderedDict(_settled(record.items))
    if name == "distrl.specs.EnvironmentSpec":
        return EnvironmentSpec(*_settled(arguments))
    if name == "numpy.dtype":
        order = str(record.state[1])[:1] if record.state else ""
        return plain_dtype(f"{order if order in '<>' else ''}{arguments[0]}")
    if module == "dm_env.specs":
        return spec_of(attribute, _settled(arguments))
    if name in _NUMPY:
        return _array(attribute, record)
    cls = settings_class(name)
    made = object.__new__(cls)  # as pickle does: checks of newer versions don't apply
    state = {**older_settings(cls), **_settled(record.state or {})}
    for field, part in state.items():
        if not field.isidentifier() or field.startswith("__"):
            raise ValueError(f"a setting of the name {field!r}")
        object.__setattr__(made, field, part)
    return made


def _array(function: str, record: _Record) -> Any:
    """Returns the array, or the number, that one of NumPy's functions for pickles would make."""
    if function == "_frombuffer":
        data, dtype, shape, order = record.arguments
        return _reshaped(data, dtype, shape, order == "F")
    if function == "_reconstruct":
        _, shape, dtype, is_fortran, data = record.state
        return _reshaped(data, dtype, shape, is_fortran)
    dtype, data = record.arguments
    return np.frombuffer(data, _settled(dtype))[0]


def _reshaped(data: Any, dtype: Any, shape: Any, is_fortran: bool) -> Any:
    flat = np.frombuffer(data, _settled(dtype))
    return flat.reshape(_settled(shape), order="F" if is_fortran else "C").copy()
