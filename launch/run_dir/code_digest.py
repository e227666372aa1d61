"""Digests of functions, by which two of one name are told apart."""

import dataclasses
import functools
import hashlib
import inspect
import re
import types
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

_ADDRESS = re.compile(r"0x[0-9a-f]+")
_DIGITS = 8


def code_digest(value: Any) -> str | None:
    """Returns a digest of a function's code, defaults and closure; None: it is no function.

    It is the same in every process, and does not depend on where the code stands. Functions that it
    finds by a global name count by that name only.
    """
    value = _unwrapped(value)
    if not isinstance(value, (types.FunctionType, types.MethodType, functools.partial)):
        return None
    return hashlib.sha256(_text(value, ()).encode()).hexdigest()[:_DIGITS]


def _unwrapped(value: Any) -> Any:
    """Returns the function in a decorated one, such as that of `jax.jit`."""
    if isinstance(value, type) or not callable(value):
        return value
    try:
        return inspect.unwrap(value)
    except ValueError:  # it wraps itself
        return value


def _text(value: Any, within: tuple[int, ...]) -> str:
    """Returns text that stands for a value. Args: within: identities of what contains it."""
    value = _unwrapped(value)
    if id(value) in within:
        return "itself"
    within = (*within, id(value))
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if isinstance(value, type):
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, types.ModuleType):
        return value.__name__
    if isinstance(value, types.CodeType):
        parts: Iterable[Any] = (value.co_code, value.co_names, value.co_consts)
    elif isinstance(value, types.FunctionType):
        cells = [_contents(cell) for cell in value.__closure__ or ()]
        parts = (value.__code__, value.__defaults__, value.__kwdefaults__, cells)
    elif isinstance(value, types.MethodType):
        parts = (value.__func__, value.__self__)
    elif isinstance(value, functools.partial):
        parts = (value.func, value.args, value.keywords)
    elif isinstance(value, np.ndarray) and not value.dtype.hasobject:
        data = hashlib.sha256(value.tobytes()).hexdigest()
        return f"{kind}{value.shape}{value.dtype}{data}"
    elif isinstance(value, (set, frozenset)):  # their order differs between processes
        return f"{kind}({','.join(sorted(_text(part, within) for part in value))})"
    elif isinstance(value, Mapping):
        parts = value.items()
    elif isinstance(value, (tuple, list)):
        parts = value
    elif dataclasses.is_dataclass(value):
        parts = [(f.name, getattr(value, f.name, None)) for f in dataclasses.fields(value)]
    else:
        return f"{kind}:{_plain(value)}"
    return f"{kind}({','.join(_text(part, within) for part in parts)})"


def _contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None


def _plain(value: Any) -> str:
    try:
        return _ADDRESS.sub("", repr(value))
    except Exception:  # of an object of the user's
        return ""
