"""The experiment that the command line describes: --env, --agent, --experiment, --transforms."""

import dataclasses
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from absl import flags

from distrl import transforms
from distrl.agents.defaults import defaults_of
from distrl.config import ActorsConfig
from distrl.errors import ConfigError
from distrl.experiment import Experiment, LearnedPolicy
from distrl.launch.cli import config_flags
from distrl.launch.cli.import_file import append_folder_for, import_file, made
from distrl.launch.cli.train_flags import BUDGETS
from distrl.launch.paths import file_and_name
from distrl.runtime.working_folder import absolute
from distrl.saved.saved_agent import is_users
from distrl.task import Task

DEFAULT_ENV = "CartPole-v1"
_DAY_S = 86_400.0

_folder = ""  # the folder of the file that --experiment names


def load_experiment(values: flags.FlagValues, load: Callable[[], Any] | None = None) -> Experiment:
    """Returns the experiment that the flags name, before its settings are changed by flags.

    Args:
      values: the flags.
      load: returns an experiment that no flag names.

    Raises:
      ConfigError: an unknown name, or a file that defines no experiment.
    """
    if load is not None:
        experiment = load()
    else:
        experiment = _preset(values) if values.experiment is None else _from_file(values)
    if values.transforms is None:
        return experiment
    chosen = transforms.by_name(values.transforms, experiment.transforms)
    return dataclasses.replace(experiment, transforms=chosen)


def apply_settings(experiment: Experiment, values: flags.FlagValues) -> Experiment:
    """Returns the experiment with the settings that were given as flags.

    Where the learner and the table have the default sizes for the actors, they get the default
    sizes for the actors as the flags change them.

    Raises:
      ConfigError: a value that the experiment refuses.
    """
    experiment = config_flags.apply_flags(experiment, values, instead=_rescaled(experiment, values))
    budgets: dict[str, Any] = {
        name: values[name].value for name in BUDGETS if values[name].value is not None
    }
    if budgets:
        goal = dataclasses.replace(experiment.goal, **budgets)
        experiment = dataclasses.replace(experiment, goal=goal)
    if values.debug is not None:
        experiment = _with_long_timeouts(experiment)
    if values.seed is not None:
        experiment = dataclasses.replace(experiment, seed=values.seed)
    return experiment


def _rescaled(experiment: Experiment, values: flags.FlagValues) -> dict[str, Any]:
    """Returns learner and replay, before their own flags, where they follow from other parts."""
    actors = config_flags.apply_flags(experiment.actors, values, "config.actors")
    tasks = experiment.tasks
    if not experiment.policies:
        return _sized(experiment, experiment.only_task, actors, values, config_flags.PREFIX)
    sized = dict[str, Any]()
    for name, policy in experiment.learned.items():
        prefix = f"{config_flags.PREFIX}.policies.{name}"
        if parts := _sized(policy, tasks[name], actors, values, prefix):
            sized[name] = dataclasses.replace(policy, **parts)
    return {"policies": {**experiment.policies, **sized}} if sized else {}


def _sized(
    given: Any, task: Task, actors: ActorsConfig, values: flags.FlagValues, prefix: str
) -> dict[str, Any]:
    """Returns a task's learner and replay where flags of other parts change their defaults.

    Args:
      given: has the task's `agent`, `learner` and `replay`, as they were without flags.
      task: the same.
      actors: the experiment's actors, with their flags.
      values: the flags.
      prefix: first part of the names of the task's flags.
    """
    agent, learner, parts = given.agent, given.learner, dict[str, Any]()
    before = (agent, task.env_spec, task.actors)
    if dataclasses.is_dataclass(agent):
        agent = config_flags.apply_flags(agent, values, f"{prefix}.agent")
    after = (agent, task.env_spec, actors.with_streams(len(task.agents) or 1))
    if defaults_of(*before).learner == learner:
        learner = parts["learner"] = defaults_of(*after).learner
    learner = config_flags.apply_flags(learner, values, f"{prefix}.learner")
    if defaults_of(*before, given.learner).replay == given.replay:
        parts["replay"] = defaults_of(*after, learner).replay
    return {name: part for name, part in parts.items() if part != getattr(given, name)}


def _preset(values: flags.FlagValues) -> Experiment:
    from distrl import presets

    env = DEFAULT_ENV if values.env is None else values.env
    append_folder_for(env)
    return presets.experiment(env, values.agent, values.seed or 0)


def _from_file(values: flags.FlagValues) -> Experiment:
    if values.env is not None:
        raise ConfigError(
            "--env and --experiment exclude each other: the file names its environment"
        )
    if values["agent"].present:
        raise ConfigError("--agent and --experiment exclude each other: the file names its agent")
    return experiment_of_file(values.experiment)


def experiment_of_file(file: str) -> Experiment:
    """Returns the experiment of FILE.py[:NAME].

    Raises:
      ConfigError: there is no such file, or it defines no experiment of that name.
    """
    path, name = file_and_name(file)
    name = name or "experiment"
    module = _import_file(path)
    if not hasattr(module, name):
        raise ConfigError(f"--experiment: {path} defines no {name!r}{_instead(path, module)}")
    experiment = made(getattr(module, name), f"--experiment: {path}:{name}")
    if not isinstance(experiment, Experiment):
        raise ConfigError(
            f"--experiment: {path}:{name} must be an Experiment, or a function that returns one; "
            f"got {type(experiment).__name__}{_instead(path, module)}"
        )
    return experiment


def _instead(path: str, module: ModuleType) -> str:
    """Returns which experiments a file has, for the message that it lacks the one asked for."""
    names = [name for name, value in vars(module).items() if isinstance(value, Experiment)]
    choices = ", ".join(f"{path}:{name}" for name in names if not name.startswith("_"))
    return f"; it has {choices}" if choices else ""


def _import_file(path: str) -> ModuleType:
    """Imports the experiment's file; see `import_file`."""
    global _folder
    _folder = os.path.dirname(os.path.abspath(absolute(path)))
    return import_file(path, "--experiment")


def experiment_modules() -> list[ModuleType]:
    """Returns the module of --experiment, and those imported from its folder; none without it."""
    return [
        module
        for module in list(sys.modules.values())
        if _folder and is_users(module) and Path(module.__file__ or "").is_relative_to(_folder)
    ]


def _with_long_timeouts(experiment: Experiment) -> Experiment:
    """Replaces timeouts that would expire while the user is at a debugger's prompt."""
    supervision = dataclasses.replace(
        experiment.supervision, restarts=0, idle_limit=None, busy_limit=None, stopped_limit=None,
        call_timeout=_DAY_S, insert_timeout=_DAY_S,
    )  # fmt: skip
    parts: dict[str, Any] = {"supervision": supervision}
    if experiment.policies:
        learned = {name: _patient(policy) for name, policy in experiment.learned.items()}
        parts["policies"] = {**experiment.policies, **learned}
    else:
        parts["learner"] = dataclasses.replace(experiment.learner, timeout=_DAY_S)
    parts["inference"] = dataclasses.replace(experiment.inference, timeout=_DAY_S)
    return dataclasses.replace(experiment, **parts)


def _patient(policy: LearnedPolicy) -> LearnedPolicy:
    learner = dataclasses.replace(policy.learner, timeout=_DAY_S)
    return dataclasses.replace(policy, learner=learner)
