"""Digests of functions, by which two of one name are told apart."""

import ast
import dataclasses
import functools
import hashlib
import inspect
import re
import tokenize
import types
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

_NOTHING = "Constant(value='')"
_ADDRESS = re.compile(r"0x[0-9a-f]+")
_DIGITS = 10  # those of before have 8, and are of bytecode


def code_digest(value: Any) -> str | None:
    """Returns a digest of a function's code, defaults and closure; None: it is no function.

    A tuple with functions in it, such as an optimiser of Optax, has one, too.

    It is the same in every process, and does not depend on where the code stands. Code counts by
    its source without comments and format, so under every Python; where there is no file with it,
    by its bytecode, which each minor version of Python has its own of. Functions that it finds by a
    global name count by that name only.
    """
    if not _has_function(value):
        return None
    return hashlib.sha256(_text(value, ()).encode()).hexdigest()[:_DIGITS]


def are_alike(digest: str, other: str) -> bool:
    """Returns whether digests are of one kind; one from an older version says nothing of a new."""
    return len(digest) == len(other)


def _has_function(value: Any) -> bool:
    if isinstance(value, tuple):
        return any(map(_has_function, value))
    kinds = (types.FunctionType, types.MethodType, functools.partial)
    return isinstance(_unwrapped(value), kinds)


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
        source = _source(value)
        if source is not None:
            return f"source({source})"
        parts: Iterable[Any] = (value.co_code, value.co_names, value.co_consts)
    elif isinstance(value, types.FunctionType):
        cells = [_contents(cell) for cell in value.__closure__ or ()]
        parts = (value.__code__, value.__defaults__, value.__kwdefaults__, cells)
    elif isinstance(value, types.MethodType):
        parts = (value.__func__, value.__self__)
    elif isinstance(value, functools.partial):
        parts = (value.func, value.args, value.keywords)
    elif isinstance(value, (np.ndarray, np.generic)) and not value.dtype.hasobject:
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


def _source(code: types.CodeType) -> str | None:
    """Returns the source of a function as text that is the same under every Python.

    None: there is no file with it, the file has changed since, or the line has several such.
    """
    try:
        with tokenize.open(code.co_filename) as file:
            text = file.read()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they were shown when the file was imported
            tree = ast.parse(text)
            module = compile(text, code.co_filename, "exec", dont_inherit=True)
        place = code.co_name, code.co_firstlineno
        nodes = [node for node in ast.walk(tree) if _place(node) == place]
        return _dump(nodes[0]) if len(nodes) == 1 and code in _codes(module) else None
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None


def _place(node: ast.AST) -> tuple[str, int] | None:
    """Returns the name and the first line that a function's code has; None: it is no function."""
    if isinstance(node, ast.Lambda):
        return "<lambda>", node.lineno
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return node.name, min(part.lineno for part in (node, *node.decorator_list))
    return None


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    for part in code.co_consts:
        if isinstance(part, types.CodeType):
            yield part
            yield from _codes(part)


def _dump(node: Any) -> str:
    """As `ast.dump`, without what is empty: that has other fields in each version of Python."""
    if isinstance(node, list):
        return f"[{','.join(map(_dump, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = {name: part for name, part in ast.iter_fields(node) if part is not None and part != []}
    if isinstance(node, ast.JoinedStr):  # 3.12.1 has empty strings in some
        fields["values"] = [part for part in node.values if _dump(part) != _NOTHING]
    parts = ",".join(f"{name}={_dump(part)}" for name, part in fields.items())
    return f"{type(node).__name__}({parts})"


def _contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None


def _plain(value: Any) -> str:
    try:
        return _ADDRESS.sub("", repr(value))
    except Exception:  # an object of the user's may raise anything
        return ""
