"""Pickles of experiments, in which functions of the caller's script keep the name of its file.

cloudpickle drops it since 3.1.3. Tracebacks show the file's lines by it, and digests are of them.
"""

import collections
import io
import os
import sys
import types
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from typing import Any, ClassVar

import cloudpickle

from distrl.errors import ConfigError
from distrl.saved.by_value import Pickler

_loading: list[bool] = []  # not empty while `loads` is at work


def dumps(value: Any) -> bytes:
    """As `cloudpickle.dumps`, with the names of files, and by value what is in no path.

    That is what a module has that another process would not find by its name, as those of pytest's
    `--import-mode=importlib`.
    """
    from distrl.saved.saved_agent import users_modules_by_value  # brings JAX, unneeded to load

    lost = users_modules_by_value(lambda module: not _can_be_found(module))
    with lost, io.BytesIO() as file:
        _Pickler(file).dump(value)
        return file.getvalue()


def _can_be_found(module: types.ModuleType) -> bool:
    """Returns whether a process with the same path imports this module by its name."""
    spec = _find(module.__name__)
    origin, file = spec and spec.origin, module.__file__
    if not origin or not file or not (os.path.exists(origin) and os.path.exists(file)):
        return spec is not None
    return os.path.samefile(origin, file)


def _find(name: str) -> ModuleSpec | None:
    """As `importlib.util.find_spec`, which answers for what is imported without looking."""
    parent, path = name.rpartition(".")[0], None
    if parent:
        above = _find(parent)
        path = above and above.submodule_search_locations
        if path is None:
            return None
    finders = (getattr(finder, "find_spec", None) for finder in sys.meta_path)
    answers = (find(name, path) for find in finders if find is not None)
    return next((spec for spec in answers if spec is not None), None)


def loads(pickled: bytes) -> Any:
    """As `cloudpickle.loads`, which imports the modules of what it makes."""
    _loading.append(True)
    try:
        return cloudpickle.loads(pickled)
    finally:
        _loading.pop()


def check_not_loading() -> None:
    """Raises ConfigError in a module that `loads` imports: it would start training endlessly."""
    if not _loading:
        return
    frame: types.FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    file = "a module" if frame is None else os.path.basename(frame.f_code.co_filename)
    raise ConfigError(
        f"{file} calls distrl.train while the process that trains imports it; put the call under "
        'if __name__ == "__main__":'
    )


def _code(file: str, make: Callable[..., types.CodeType], arguments: Any) -> types.CodeType:
    return make(*arguments).replace(co_filename=file)


def _reduced(code: types.CodeType) -> tuple[Any, ...]:
    make, arguments = cloudpickle.Pickler.dispatch_table[types.CodeType](code)
    return _code, (code.co_filename, make, arguments)


class _Pickler(Pickler):
    dispatch_table: ClassVar[Any] = collections.ChainMap(
        {types.CodeType: _reduced}, cloudpickle.Pickler.dispatch_table
    )
