"""The settings of a run that differ from the defaults of its environment and algorithm."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from distrl import presets
from distrl.errors import ConfigError, SpecError
from distrl.experiment import Experiment
from distrl.launch.run_dir.config_dict import as_dict
from distrl.launch.run_dir.config_diff import describe, flat
from distrl.saved.saved_agent import is_installed

_AGENTS = {cls.__qualname__: name for name, cls in presets.AGENTS.items()}
_PREFIXES = {"GymBuilder": None, "DmControlBuilder": "dm_control"}


def changed_settings(config: Mapping[str, Any]) -> tuple[list[tuple[str, Any, Any]], str]:
    """Returns the settings of a run that differ, and from what.

    Args:
      config: what `config.json` has.

    Returns:
      Name, value and other value of each; and a description of the other values: those of the same
      environment and algorithm by name, or where these have no names the defaults of the settings.
    """
    settings = config.get("experiment") or {}
    classes = config.get("classes") or {}
    agent = _AGENTS.get(classes.get("agent", ""))
    usual, than = None, "the defaults"
    name = _name(settings.get("environment"), classes)
    if agent is not None and name is not None and not _names_code(name):
        try:
            usual = describe(presets.experiment(name, agent))["experiment"]
            than = f"`distrl train --env={name} --agent={agent}`"
        except (ConfigError, SpecError):  # the suite is not installed here
            usual = None
    if usual is None:
        usual = _defaults()
    before = flat(json.loads(json.dumps(usual)), "")
    return [
        (name, value, before[name])
        for name, value in flat(settings, "").items()
        if name in before and before[name] != value
    ], than


def _name(environment: Any, classes: Mapping[str, str]) -> str | None:
    """Returns the name of a run's environment for `--env`; None: it has none."""
    if not isinstance(environment, dict):
        return None
    if classes.get("environment") == "NativeEnvironment":
        return str(environment.get("name"))
    builder = environment.get("builder")
    kind = classes.get("environment.builder")
    if not isinstance(builder, dict) or kind not in _PREFIXES:
        return None
    suite = _PREFIXES[kind] or builder.get("suite")
    return f"{suite}:{environment.get('name')}"


def _names_code(name: str) -> bool:
    """Returns whether a name has a module that may be the run's own: a report runs no code."""
    module = name.partition(":")[2].rpartition(":")[0]
    return bool(module) and not is_installed(module)


def _defaults() -> dict[str, Any]:
    """Returns the defaults of the parts that have the same class in every experiment."""
    parts = {
        field.name: field.default
        for field in dataclasses.fields(Experiment)
        if dataclasses.is_dataclass(field.default)
    }
    return {name: as_dict(part) for name, part in parts.items()}
