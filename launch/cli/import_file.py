"""Imports Python files that the command line names."""

import importlib.util
import inspect
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from distrl.errors import ConfigError
from distrl.runtime.working_folder import absolute


def import_file(path: str, what: str) -> ModuleType:
    """Imports a user's file; its exceptions are the caller's to handle.

    Its own folder comes last on the path: files beside it can be imported, and shadow nothing.

    Args:
      path: the file.
      what: what named it, for errors.

    Raises:
      ConfigError: there is no such Python file.
    """
    file = absolute(path)
    if not os.path.isfile(file):
        raise ConfigError(f"{what}: no file {path!r}")
    name = file.stem if _is_free(file.stem, file) else f"distrl_experiment_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{what}: {path!r} is not a Python file")
    append_to_path(os.path.dirname(os.path.abspath(file)))
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def append_to_path(folder: str) -> None:
    """Lets modules in a folder be imported where no other of the name is installed."""
    if folder not in sys.path:
        sys.path.append(folder)


def append_folder_for(env: str) -> None:
    """Lets the module of an environment, gym:my_module:MyEnv-v0, be in the current folder."""
    if env.count(":") > 1:
        append_to_path(str(absolute(".")))


def _is_free(name: str, path: Path) -> bool:
    """Returns whether no module but the file itself has this name."""
    imported = sys.modules.get(name)
    if imported is not None:
        origin = getattr(imported, "__file__", None)
    else:
        spec = importlib.util.find_spec(name) if name.isidentifier() else None
        if spec is None:
            return True
        origin = spec.origin
    return origin is not None and os.path.exists(origin) and os.path.samefile(origin, path)


def made(value: Any, what: str) -> Any:
    """Returns what a file defines, or what it returns if it is a function.

    Args:
      value: the object of that name.
      what: names it in messages: "launch: make_program of program.py".

    Raises:
      ConfigError: a function that needs arguments.
    """
    if not callable(value):
        return value
    needed = [
        parameter.name
        for parameter in inspect.signature(value).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    if needed:
        raise ConfigError(
            f"{what} needs {', '.join(needed)}; name a function without required arguments"
        )
    return value()
