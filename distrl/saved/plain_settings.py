"""Settings of distrl's own agents and transforms as plain data for JSON, and back.

Decoding makes objects of a few kinds only, and calls no code but distrl's own dataclasses: a file
can name neither functions nor other classes.
"""

import base64
import collections
import dataclasses
import importlib
import re
from typing import Any

import dm_env.specs
import numpy as np

from distrl.errors import ConfigError
from distrl.specs import EnvironmentSpec

# The modules with the dataclasses that a file may name.
_MODULES = re.compile(r"distrl\.(agents|transforms)(\.[a-z_0-9]+)+")
_DICTIONARIES = {"dict": dict, "OrderedDict": collections.OrderedDict}
_SPECS = {
    dm_env.specs.Array: ("shape", "dtype", "name"),
    dm_env.specs.BoundedArray: ("shape", "dtype", "minimum", "maximum", "name"),
    dm_env.specs.DiscreteArray: ("num_values", "dtype", "name"),
}
_SPECS_BY_NAME = {kind.__name__: kind for kind in _SPECS}


class ForeignError(Exception):
    """Something that is not distrl's; the message is its name."""


def encode(value: Any) -> Any:
    """Returns a value as plain data. Raises ForeignError if it has parts of other kinds."""
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if kind is list:
        return [encode(part) for part in value]
    if kind is tuple:
        return {"tuple": [encode(part) for part in value]}
    if kind.__name__ in _DICTIONARIES and kind is _DICTIONARIES[kind.__name__]:
        return {kind.__name__: [[encode(key), encode(part)] for key, part in value.items()]}
    if kind is np.ndarray and not value.dtype.hasobject:
        data = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
        return {"array": data, "dtype": value.dtype.str, "shape": list(value.shape)}
    if isinstance(value, np.generic) and not value.dtype.hasobject:
        data = base64.b64encode(value.tobytes()).decode()
        return {"number": data, "dtype": value.dtype.str}
    if isinstance(value, np.dtype) and value.names is None and not value.hasobject:
        return {"dtype": value.str}
    if kind in _SPECS:
        return {"spec": kind.__name__, **_parts(value, _SPECS[kind])}
    if kind is EnvironmentSpec:
        return {"environment": encode(tuple(value))}
    if hasattr(value, "__qualname__"):  # a function, which may be anything
        raise ForeignError(f"{value.__module__}.{value.__qualname__}")
    name = f"{kind.__module__}.{kind.__qualname__}"
    if _named_class(name) is kind:
        fields = [field.name for field in dataclasses.fields(value) if field.init]
        return {"class": name, **_parts(value, fields)}
    raise ForeignError(name)


def _parts(value: Any, names: Any) -> dict[str, Any]:
    return {"fields": {name: encode(getattr(value, name)) for name in names}}


def decode(data: Any) -> Any:
    """Returns the value that `encode` was given.

    Raises:
      ForeignError: the data names a class that is not distrl's.
      ConfigError: it has settings that this version of distrl does not have.
      ValueError, LookupError, TypeError: the data is not from `encode`.
    """
    if data is None or isinstance(data, (bool, int, float, str)):
        return data
    if isinstance(data, list):
        return [decode(part) for part in data]
    kind = next(iter(data))
    if kind == "tuple":
        return tuple(decode(part) for part in data[kind])
    if kind in _DICTIONARIES:
        return _DICTIONARIES[kind]((decode(key), decode(part)) for key, part in data[kind])
    if kind == "array":
        flat = np.frombuffer(base64.b64decode(data[kind]), plain_dtype(data["dtype"]))
        return flat.reshape(data["shape"]).copy()
    if kind == "number":
        return np.frombuffer(base64.b64decode(data[kind]), plain_dtype(data["dtype"]))[0]
    if kind == "dtype":
        return plain_dtype(data[kind])
    if kind == "spec":
        fields = {name: decode(part) for name, part in data["fields"].items()}
        return _SPECS_BY_NAME[data[kind]](**fields)
    if kind == "environment":
        return EnvironmentSpec(*decode(data[kind]))
    if kind == "class":
        return _made(data[kind], {name: decode(part) for name, part in data["fields"].items()})
    raise ValueError(f"unknown kind {kind!r}")


def _made(name: str, fields: dict[str, Any]) -> Any:
    cls = settings_class(name)
    unknown = fields.keys() - {field.name for field in dataclasses.fields(cls) if field.init}
    if unknown:
        raise ConfigError(
            f"{name} has no {', '.join(sorted(unknown))} in this version of distrl: the policy was "
            "saved by another one"
        )
    return cls(**{**older_settings(cls), **fields})


def older_settings(cls: Any) -> dict[str, Any]:
    """Returns values for settings that were added to a class later, for a file without them."""
    return dict(getattr(cls, "BEFORE", {}))


def settings_class(name: str) -> Any:
    """Returns a dataclass of distrl's agents or transforms, by its full name.

    Raises:
      ForeignError: it is not such a class.
    """
    cls = _named_class(name)
    if cls is None:
        raise ForeignError(name)
    return cls


def _named_class(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    if not _MODULES.fullmatch(module):
        return None
    try:
        cls = getattr(importlib.import_module(module), attribute, None)
    except ImportError:  # a module of another version of distrl
        return None
    is_ours = isinstance(cls, type) and cls.__module__ == module and dataclasses.is_dataclass(cls)
    return cls if is_ours else None


def plain_dtype(name: str) -> np.dtype[Any]:
    """Returns the dtype whose `str` is `name`. Raises ValueError for Python objects or fields."""
    dtype = np.dtype(str(name))
    if dtype.hasobject or dtype.names is not None:
        raise ValueError(f"dtype {name!r}")
    return dtype


def spec_of(name: str, arguments: tuple[Any, ...]) -> Any:
    """Returns a spec of dm_env from its positional arguments. Raises LookupError if it is none."""
    kind: Any = _SPECS_BY_NAME[name]
    return kind(**dict(zip(_SPECS[kind], arguments, strict=True)))
