"""Writes and reads the file that describes a checkpoint's agent: settings, transforms and spec.

Those of distrl's own agents and transforms are JSON. Only an agent or transform of the user's own,
which has code that distrl does not know, is a pickle.
"""

import contextlib
import functools
import importlib.metadata
import importlib.util
import json
import os
import pickle
import re
import site
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle

from distrl.errors import ConfigError, UntrustedError
from distrl.runtime.files import read_dict
from distrl.saved.by_value import dumps
from distrl.saved.bytecode import has_bytecode, other_python
from distrl.saved.plain_pickle import load_plain
from distrl.saved.plain_settings import ForeignError, decode, encode
from distrl.task import Task

SETTINGS = "agent.json"
PICKLE = "agent.pkl"

_FORMAT = 1
_KEYS = {"agent", "transforms", "env_spec"}
_registry = threading.RLock()  # guards the modules that cloudpickle pickles by value


def read_settings(path: Path, trust: bool, saved_by: str = "") -> dict[str, Any]:
    """Reads what `agent_writer` wrote.

    No code of a JSON file, or of a pickle without `trust`, is executed: such a pickle, which older
    versions wrote, may only name classes of distrl.

    Args:
      path: the file.
      trust: run the code that a pickle has.
      saved_by: the version of Python that wrote it; "": the last one of its run.

    Returns:
      "agent", "transforms" and "env_spec" of the experiment.

    Raises:
      ConfigError: the file is damaged, of another version, has bytecode of another Python, or needs
        `trust`.
    """
    data = path.read_bytes()
    other = other_python(path, saved_by or _runs_python(path)) if path.name == PICKLE else None
    if other is not None and has_bytecode(data):
        raise other
    try:
        if path.name == PICKLE:
            return _checked(path, pickle.loads(data) if trust else load_plain(data))
        document = json.loads(data)
        if document["format"] != _FORMAT:
            raise ConfigError(
                f"{path} has format {document['format']}, but this version of distrl reads "
                f"{_FORMAT}"
            )
        settings = {name: decode(value) for name, value in document["settings"].items()}
        return _checked(path, settings)
    except ForeignError as error:
        raise UntrustedError(
            f"{path} has code of its own ({error}), because the agent, a transform or the spec is "
            "not distrl's: loading it runs that code",
            "load it with trust=True, as in load_policy(..., trust=True)",
        ) from None
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        if other is not None:
            raise other from error
        raise ConfigError(f"{path} is damaged: {type(error).__name__}: {error}") from error
    except ImportError as error:
        raise ConfigError(f"{path} needs a package that is not installed here: {error}") from error
    except (pickle.UnpicklingError, EOFError) as error:
        raise ConfigError(f"{path} is damaged: {error}") from error


def _runs_python(path: Path) -> str:
    """Returns the last version of Python of the run of a checkpoint's file; "": unknown."""
    settings = read_dict(path.parent.parent.parent / "config.json") or {}
    return str((settings.get("versions") or {}).get("python", ""))


def _checked(path: Path, settings: Any) -> dict[str, Any]:
    if not isinstance(settings, dict) or not settings.keys() >= _KEYS:
        raise ConfigError(f"{path} is damaged: it has no {', '.join(sorted(_KEYS))}")
    return settings


def agent_writer(task: Task, printer: Callable[[str], None] = print) -> Callable[[Path], None]:
    """Returns a function that writes to a checkpoint's folder what `load_policy` needs.

    Classes and functions of the user's own files are pickled by value, so that `load_policy` does
    not need those files.

    Args:
      task: the task whose agent it is.
      printer: prints a line if the agent cannot be pickled; the run itself does not need it.
    """
    settings, name = _settings(task), SETTINGS
    try:
        encoded = {key: encode(value) for key, value in settings.items()}
        data = json.dumps({"format": _FORMAT, "settings": encoded}, indent=1).encode()
    except ForeignError:
        name = PICKLE
        try:
            data = pickled(settings)
        except Exception as error:  # any kind: it comes from the user's own objects
            printer(
                "distrl: load_policy will not work: the agent's settings or transforms cannot be "
                f"pickled: {error}"
            )
            return lambda folder: None

    def write(folder: Path) -> None:
        (folder / name).write_bytes(data)

    return write


def own_code(task: Task) -> str | None:
    """Returns the name of the user's own code in a task's checkpoints; None: they have none."""
    try:
        encode(_settings(task))
    except ForeignError as error:
        return str(error)
    return None


def _settings(task: Task) -> dict[str, Any]:
    return {"agent": task.agent, "transforms": task.transforms, "env_spec": task.env_spec}


def pickled(settings: Any) -> bytes:
    """Returns a pickle that has the classes and functions of the user's own files by value."""
    with users_modules_by_value(lambda module: True):
        return dumps(settings)


@contextlib.contextmanager
def users_modules_by_value(choose: Callable[[ModuleType], bool]) -> Iterator[None]:
    """Makes cloudpickle pickle by value the user's own modules for which `choose` is true.

    Modules that are already registered with it stay registered.
    """
    with _registry:
        known = cloudpickle.list_registry_pickle_by_value()
        registered = [
            module
            for module in list(sys.modules.values())
            if is_users(module) and module.__name__ not in known and choose(module)
        ]
        for module in registered:
            cloudpickle.register_pickle_by_value(module)
        try:
            yield
        finally:
            for module in registered:
                cloudpickle.unregister_pickle_by_value(module)


def is_users(module: ModuleType) -> bool:
    """Returns whether a module is the user's own: not installed, and not part of distrl."""
    file = getattr(module, "__file__", None)
    name = getattr(module, "__name__", "__main__")
    if not file or name == "__main__" or name.partition(".")[0] == "distrl":
        return False
    return name in sys.modules and not _is_library(name, str(file))


def is_installed(module: str) -> bool:
    """Returns whether a module's top-level package is installed; imports nothing to find out.

    A folder without `__init__.py` is not, though Python imports modules from it: it may be any
    folder beside the program, such as a run's.
    """
    package = module.partition(".")[0]
    if not package.isidentifier() or package == "__main__":
        return False
    try:
        spec = importlib.util.find_spec(package)
    except ValueError:  # a module that no loader has made
        return False
    return spec is not None and spec.has_location and _is_library(package, str(spec.origin))


def _is_library(name: str, file: str) -> bool:
    """Returns whether a module's file is Python's own, or was put there by an installer."""
    if file.startswith(_libraries()):
        return True
    folders = Path(file).parents  # the top-level package's is in the path
    depth = name.count(".") + (Path(file).stem == "__init__")
    return depth < len(folders) and name.partition(".")[0] in _installed(str(folders[depth]))


@functools.cache
def _installed(folder: str) -> frozenset[str]:
    """Returns the top-level packages that an installer has put into a folder.

    PYTHONPATH may have such folders: from `pip install --target`, from Spack, or from a cluster's
    modules. Projects that are installed as editable have no RECORD beside their code.
    """
    records = (
        distribution.read_text("RECORD") or ""
        for distribution in importlib.metadata.distributions(path=[folder])
    )
    return frozenset(
        re.split(r"[/.,]", line, maxsplit=1)[0] for text in records for line in text.splitlines()
    )


@functools.cache
def _libraries() -> tuple[str, ...]:
    """Returns the folders of installed packages and of Python's own modules."""
    paths = sysconfig.get_paths()
    libraries = {paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")}
    libraries |= {*site.getsitepackages(), site.getusersitepackages()}
    return tuple(os.path.join(folder, "") for folder in libraries)
