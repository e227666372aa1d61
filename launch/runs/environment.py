"""The environment of a run, from its settings or from the experiment that it was made with."""

import dataclasses
import functools
import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from distrl.envs.multi_agent.copies import Copies
from distrl.envs.multi_agent.environment import MultiAgentEnvironment
from distrl.envs.multi_agent.pettingzoo import PACKAGES, PettingZooBuilder
from distrl.envs.native import NativeEnvironment
from distrl.envs.pool import Environment
from distrl.envs.pool_config import PoolConfig
from distrl.envs.python import PythonEnvironment, WrapperConfig
from distrl.envs.suites import DmControlBuilder, GymBuilder
from distrl.errors import ConfigError
from distrl.experiment import Experiment, deferred_checks
from distrl.launch.cli.import_file import append_to_path
from distrl.launch.run_dir.config_dict import as_tuples, is_plain, is_settings_tuple
from distrl.launch.run_dir.snapshot import pickled_experiment, read_about
from distrl.launch.runs.run import Run
from distrl.runtime.working_folder import absolute
from distrl.saved.bytecode import has_bytecode, other_python
from distrl.saved.saved_agent import is_installed

_CLASSES = {
    cls.__qualname__: cls
    for cls in (
        NativeEnvironment, PythonEnvironment, MultiAgentEnvironment, Copies, GymBuilder,
        DmControlBuilder, PettingZooBuilder, WrapperConfig, PoolConfig,
    )
}  # fmt: skip
_ENVIRONMENT = "environment"
_FUNCTIONS = ("builder", "post_process")  # fields of them that code fills


class _NotPlainError(Exception):
    """A part of an environment that settings alone do not describe; the message is its name."""


class _ModuleError(_NotPlainError):
    """A module that settings name, and that no installed package has; the message is its name."""


def environment_of(
    run: Run, *, file: str | None = None, trust: bool = False, command: str | None = None
) -> Environment:
    """Returns the environment of a run; of a policy that learns in copies, that of its copy.

    Args:
      run: the run, or one of its policies.
      file: FILE.py[:NAME] of the experiment; None: the one that the run was made with.
      trust: import the file or the module that the run names, or unpickle what its folder has.
      command: the command that is run, for messages; None: it is Python's `distrl.evaluate`.

    Raises:
      ConfigError: it is code of the user's own, and neither is given.
    """
    config = run.config
    settings = (config.get("experiment") or {}).get(_ENVIRONMENT) or {}
    classes = config.get("classes") or {}
    folders = None
    if trust and file is None:
        folders = [str(config.get("working_folder") or "."), "."]
    try:
        not_plain = config.get("not_plain") or ()
        environment = _made(_ENVIRONMENT, settings, classes, not_plain, folders)
    except _NotPlainError as error:
        experiment = experiment_of(run, file=file, trust=trust)
        if experiment is None:
            raise ConfigError(_hint(run, error, command)) from None
        environment = with_settings(_ENVIRONMENT, experiment.environment, settings, classes)
    if isinstance(environment, Copies) and run.task is not None:
        return environment.environment
    return environment


def _hint(run: Run, error: _NotPlainError, command: str | None) -> str:
    known = _named_file(run) or pickled_experiment(run.run_dir)
    if command is None:
        trusting = "load the run with load_run(PATH, trust=True)"
        given = "give an environment or its name, evaluate(run, ENVIRONMENT)"
    else:
        trusting = "add --trust"
        given = (
            "name the file that defines its experiment, --experiment=FILE.py, or an environment, "
            "--env=NAME"
        )
    if isinstance(error, _ModuleError):
        first = f"to import that module, {trusting}; or {given}"
    else:
        first = f"to run that code, which is in {known}, {trusting}; or {given}" if known else given
    return (
        f"{command or 'evaluate'}: the environment of {run.path} has code of its own ({error}): "
        f"{first}"
    )


def experiment_of(run: Run, *, file: str | None = None, trust: bool = False) -> Experiment | None:
    """Returns the experiment that a run was made with, without what flags changed.

    Args:
      run, file, trust: see `environment_of`.

    Returns:
      None: there is no file, or it must not be run.
    """
    if file is None and trust:
        file = _named_file(run)
    if file is not None:
        return _imported(file)
    pickle = pickled_experiment(run.run_dir) if trust else None
    return None if pickle is None else _unpickled(pickle)


def _named_file(run: Run) -> str | None:
    """Returns FILE.py[:NAME] as the run's command line has it, with the folder it is in."""
    words, file = iter(run.config.get("command") or []), None
    for word in words:
        flag, equals, value = str(word).lstrip("-").partition("=")
        if flag == "experiment" and str(word).startswith("-"):
            file = value if equals else str(next(words, ""))  # the last one, as absl
    if file is None:
        return None
    return str(Path(run.config.get("working_folder") or ".", file))


@functools.cache
def _imported(file: str) -> Experiment:
    from distrl.launch.cli.load_experiment import experiment_of_file

    with deferred_checks():  # flags may have corrected it, for another machine's memory
        return experiment_of_file(file)


@functools.cache
def _unpickled(path: Path) -> Experiment:
    import cloudpickle

    data = path.read_bytes()
    packages = read_about(path.parent).get("packages") or {}
    other = other_python(path, str(packages.get("python", "")))
    if other is not None and has_bytecode(data):
        raise other
    try:
        experiment = cloudpickle.loads(data)
    except Exception as error:  # any kind: it names classes of other versions, or of the user's
        raise ConfigError(f"{path} cannot be read: {type(error).__name__}: {error}") from error
    if not isinstance(experiment, Experiment):
        raise ConfigError(f"{path} has no experiment")
    return experiment


def _made(
    name: str,
    settings: Any,
    classes: Any,
    not_plain: Collection[str],
    folders: Sequence[str] | None,
) -> Any:
    """Returns the object of a field that settings describe, or raises _NotPlainError.

    Args:
      name: the field's dotted name.
      settings: what its fields were, as `config.json` has them.
      classes: names of classes by field.
      not_plain: names of fields whose values settings do not have.
      folders: where modules that settings name may be, besides Python's path; None: those that are
        not installed must not be imported.
    """
    cls: Any = _CLASSES.get(classes.get(name, ""))
    if cls is None:
        raise _NotPlainError(classes.get(name) or str(settings))
    values = {}
    for field in dataclasses.fields(cls):
        if field.name not in settings:
            continue  # the run is of an older version
        value, inner = settings[field.name], f"{name}.{field.name}"
        if inner in classes:
            values[field.name] = _made(inner, value, classes, not_plain, folders)
        elif field.name in _FUNCTIONS and value is not None:
            raise _NotPlainError(str(value))
        elif inner in not_plain:
            raise _NotPlainError(inner)
        else:
            values[field.name] = as_tuples(value)
    part = cls(**values)
    if module := _module_to_trust(part):
        if folders is None:
            raise _ModuleError(module)
        for folder in folders:
            append_to_path(str(absolute(folder)))
    return part


def _module_to_trust(part: Any) -> str | None:
    """Returns the module that a part imports by name; None: none, or one of a package."""
    if isinstance(part, PettingZooBuilder):
        known = part.module.partition(".")[0] in PACKAGES and is_installed(part.module)
        return None if known else part.module
    if isinstance(part, GymBuilder) and part.module and not is_installed(part.module):
        return part.module
    return None


def with_settings(name: str, part: Any, settings: Any, classes: Any) -> Any:
    """Returns a part of an experiment with the plain settings that the run had.

    Args:
      name: the part's dotted name.
      part: as the experiment has it, without what flags changed.
      settings, classes: see `_made`.
    """
    if type(part).__qualname__ != classes.get(name) or not dataclasses.is_dataclass(part):
        return part
    values: dict[str, Any] = {}
    for field in dataclasses.fields(part):
        if field.name not in settings or not field.init:
            continue
        now, was = getattr(part, field.name), as_tuples(settings[field.name])
        inner = f"{name}.{field.name}"
        if dataclasses.is_dataclass(now):
            values[field.name] = with_settings(inner, now, was, classes)
        elif is_settings_tuple(now) and isinstance(was, dict):
            values[field.name] = tuple(
                with_settings(f"{inner}.{each.name}", each, was.get(each.name), classes)
                for each in now
            )
        elif field.name not in _FUNCTIONS and is_plain(now) and is_plain(was):
            values[field.name] = now if _has_moved(inner, was, now) else was
    return dataclasses.replace(part, **values)  # type: ignore[type-var]


def _has_moved(name: str, was: Any, now: Any) -> bool:
    """Returns whether the experiment's path exists here and the run's does not; prints so then."""
    if was == now or not all(isinstance(path, str) and os.path.isabs(path) for path in (was, now)):
        return False
    moved = os.path.exists(now) and not os.path.exists(was)
    if moved:
        print(f"distrl: {name}: there is no {was}, as in the run; taking {now}", flush=True)
    return moved
