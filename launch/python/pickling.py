"""Pickles of experiments, in which functions of the caller's script keep the name of its file.

cloudpickle drops it since 3.1.3. Tracebacks show the file's lines by it, and digests are of them.
"""

import collections
import io
import types
from collections.abc import Callable
from typing import Any, ClassVar

import cloudpickle


def dumps(value: Any) -> bytes:
    """As `cloudpickle.dumps`, with the names of files."""
    with io.BytesIO() as file:
        _Pickler(file).dump(value)
        return file.getvalue()


def _code(file: str, make: Callable[..., types.CodeType], arguments: Any) -> types.CodeType:
    return make(*arguments).replace(co_filename=file)


def _reduced(code: types.CodeType) -> tuple[Any, ...]:
    make, arguments = cloudpickle.Pickler.dispatch_table[types.CodeType](code)
    return _code, (code.co_filename, make, arguments)


class _Pickler(cloudpickle.Pickler):
    dispatch_table: ClassVar[Any] = collections.ChainMap(
        {types.CodeType: _reduced}, cloudpickle.Pickler.dispatch_table
    )
