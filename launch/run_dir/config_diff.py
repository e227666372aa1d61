"""The differences between the settings of a checkpoint and the current ones."""

import dataclasses
import json
import re
import types
from collections.abc import Mapping
from typing import Any, NamedTuple

from distrl.agents.action_noise import NoiseSchedule
from distrl.agents.continuous import SHARED
from distrl.agents.dqn import DQNConfig
from distrl.agents.networks import NetworkConfig
from distrl.config import ActorsConfig, MetricsConfig
from distrl.experiment import Experiment
from distrl.launch.run_dir.code_digest import are_alike, code_digest
from distrl.launch.run_dir.config_dict import (
    as_dict,
    is_plain_data,
    is_settings_mapping,
    plain,
    setting_fields,
)
from distrl.replay.config import ReplayConfig

# Settings that fix shapes or the meaning of numbers, with all that they contain; and exceptions.
_FIXED = (
    "environment", "transforms", "task", "agent.network", "agent.scale_integers", "replay.table",
    "replay.unroll_length",
)  # fmt: skip
_FREE = tuple(
    f"{environment}.{name}"
    for environment in ("environment", "environment.environment")  # the latter in copies
    for name in ("num_threads", "pool", "return_threshold", "check_finite")
)
# Settings that older checkpoints lack, by the end of their names, and the values in effect then.
_BEFORE = {
    **ActorsConfig.BEFORE,
    **MetricsConfig.BEFORE,
    **ReplayConfig.BEFORE,
    **NetworkConfig.BEFORE,
    "inputs": [],  # as in a file
    **DQNConfig.BEFORE,
    **NoiseSchedule.BEFORE,
    "whole_episodes": False,
    "burn_in": 0,
    "learning": True,
}
_CLASSES_BEFORE = {
    "agent.exploration": NoiseSchedule.__qualname__,
    "agent.network": NetworkConfig.__qualname__,
}
_POLICY = re.compile(r"^policies\.\w+(\.|$)")  # what several policies have each
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # in the name of a function


class Change(NamedTuple):
    """A setting whose value is not that of the checkpoint.

    Attributes:
      field: its dotted name.
      was, now: the values.
      fixed: whether a run with this change cannot be resumed.
    """

    field: str
    was: Any
    now: Any
    fixed: bool


def describe(experiment: Experiment) -> dict[str, Any]:
    """Returns the settings as plain data.

    These are "experiment", nested, "classes" by field, and "functions": their digests by field; and
    "not_plain": the fields of the environment of which "experiment" has a name and not the value.
    """
    return {
        "experiment": as_dict(experiment),
        "classes": _classes(experiment, ""),
        "functions": _functions(experiment, ""),
        "not_plain": _not_plain("environment", experiment.environment),
    }


def _classes(settings: Any, prefix: str) -> dict[str, str]:
    """Returns the names of the dataclasses in `settings`, by field."""
    classes = {}
    for field in setting_fields(settings):
        parts = _parts(f"{prefix}{field.name}", getattr(settings, field.name))
        for name, part in parts.items():
            classes[name] = type(part).__qualname__
            classes.update(_classes(part, f"{name}."))
    return classes


def _functions(settings: Any, prefix: str) -> dict[str, str]:
    """Returns the digests of the functions in `settings`, by field."""
    digests = {}
    for field in setting_fields(settings):
        name, value = f"{prefix}{field.name}", getattr(settings, field.name)
        values = {name: value}
        if isinstance(value, Mapping):
            values = {f"{name}.{key}": part for key, part in value.items()}
        for each, part in values.items():
            digest = code_digest(part)
            if digest is not None:
                digests[each] = digest
        for part_name, part in _parts(name, value).items():
            digests.update(_functions(part, f"{part_name}."))
    return digests


def _not_plain(name: str, value: Any) -> list[str]:
    """Returns the fields in a setting of this name whose values a file does not have."""
    parts = _parts(name, value)
    if not parts:
        return [] if is_plain_data(value) else [name]
    return [
        each
        for part_name, part in parts.items()
        for field in setting_fields(part)
        for each in _not_plain(f"{part_name}.{field.name}", getattr(part, field.name))
    ]


def _parts(name: str, value: Any) -> dict[str, Any]:
    """Returns the dataclasses that a setting of this name is or has, by name."""
    parts = {name: value}
    if is_settings_mapping(value):
        parts = {f"{name}.{key}": part for key, part in value.items()}
    elif isinstance(value, tuple):
        parts = {f"{name}.{getattr(part, 'name', type(part).__name__)}": part for part in value}
    return {
        name: part
        for name, part in parts.items()
        if dataclasses.is_dataclass(part) and not isinstance(part, type)
    }


def defaults(settings: Any, prefix: str = "") -> dict[str, Any]:
    """Returns the defaults of all settings in an experiment, as `flat` returns them from a file.

    They are what a checkpoint had that is older than a setting, unless `_BEFORE` says otherwise.
    """
    result = {}
    for field in setting_fields(settings):
        name = f"{prefix}{field.name}"
        for part_name, part in _parts(name, getattr(settings, field.name)).items():
            result.update(defaults(part, f"{part_name}."))
        if field.default is not dataclasses.MISSING:
            result[name] = json.loads(json.dumps(plain(field.default)))
    return result


def goal(settings: dict[str, Any]) -> Any:
    """Returns the part of what `describe` returned that says when a run ends.

    Without what is None, because an older run folder does not know every budget.
    """
    experiment = settings["experiment"]
    goals = {"": experiment.get("goal") or {}}
    for name, policy in (experiment.get("policies") or {}).items():
        if isinstance(policy, dict):
            goals[name] = policy.get("goal") or {}
    given = {
        name: {field: value for field, value in parts.items() if value is not None}
        for name, parts in goals.items()
    }
    return {name: parts for name, parts in given.items() if parts}


def with_goal(settings: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Returns settings with the goals of others. Args: both are what `describe` returned."""
    goals, experiment = other["experiment"], dict(settings["experiment"])
    experiment["goal"] = goals.get("goal")
    policies = dict(experiment.get("policies") or {})
    for name, policy in (goals.get("policies") or {}).items():
        if isinstance(policy, dict) and isinstance(policies.get(name), dict):
            policies[name] = {**policies[name], "goal": policy.get("goal")}
    if policies:
        experiment["policies"] = policies
    return {**settings, "experiment": experiment}


def compare(
    old: dict[str, Any], new: dict[str, Any], usual: Mapping[str, Any] = types.MappingProxyType({})
) -> list[Change]:
    """Returns the settings that differ.

    Args:
      old: what `describe` returned, read from a file; empty: nothing is known.
      new: the same for the current settings.
      usual: what `defaults` returned for them.
    """
    if "experiment" not in old:
        return []
    new_classes = new["classes"]
    known = {name: cls for name, cls in _CLASSES_BEFORE.items() if name in new_classes}
    old_classes = {**known, **old["classes"]}
    was, now = flat(old["experiment"], ""), flat(new["experiment"], "")
    # Older versions have a list of transforms as text, which says nothing about its functions.
    unknown = [name for name, value in was.items() if _is_text_of_list(name, value)]
    was, now, old_classes, new_classes = (
        {name: value for name, value in each.items() if not any(_within(name, u) for u in unknown)}
        for each in (was, now, old_classes, new_classes)
    )
    replaced = sorted(
        name
        for name in old_classes.keys() | new_classes.keys()
        if old_classes.get(name) != new_classes.get(name)
    )
    changes = []
    for name in replaced:
        part = new_classes.get(name)
        if part is not None and name not in old_classes:
            part = _with_values(name, part, now, usual)
        changes.append(_change(name, old_classes.get(name), part, _is_agent(name)))
    if "agent.network" in new_classes.keys() - old["classes"].keys():  # continuous control
        was = {**flat(json.loads(json.dumps(as_dict(SHARED))), "agent.network."), **was}
    # It is in the settings of all of DQN's networks, and changes those that are dueling.
    for name in [*now, *(name for name in was if name not in now)]:
        old_value = was.get(name, _BEFORE.get(name.rpartition(".")[2], usual.get(name)))
        if old_value != now.get(name) and not any(_within(name, each) for each in replaced):
            dueling = now.get(name.replace("dueling_streams", "dueling"), True)
            fixed = _of_policy(name) == "agent.dueling_streams" and dueling
            changes.append(_change(name, old_value, now.get(name), fixed))
    return [*changes, *_changed_code(old, new, {change.field for change in changes})]


def _with_values(
    name: str, part: str, settings: Mapping[str, Any], usual: Mapping[str, Any]
) -> str:
    """Returns "ComponentConfig(learning_rate=0.001)": a part with what is not usual in it.

    Args:
      name: its dotted name.
      part: its class.
      settings: all settings, by dotted name.
      usual: see `compare`.
    """
    values = [
        f"{field.removeprefix(f'{name}.')}={value}"
        for field, value in settings.items()
        if _within(field, name) and value != usual.get(field)
    ]
    return f"{part}({', '.join(values)})" if values else part


def _changed_code(old: dict[str, Any], new: dict[str, Any], others: set[str]) -> list[Change]:
    """Returns the functions of the same name whose code has changed, which is allowed: a fix may.

    Nothing is known for a checkpoint whose digests are of an older version.
    """
    was, now = old.get("functions", {}), new.get("functions", {})
    return [
        Change(name, f"code {was[name]}", f"code {now[name]}", False)
        for name in now
        if was.get(name, now[name]) != now[name]
        and are_alike(was[name], now[name])
        and name not in others
    ]


def _is_agent(name: str) -> bool:
    """Returns whether a field is a task's algorithm, or a policy."""
    return _of_policy(name) in ("agent", "")


def _of_policy(name: str) -> str:
    """Returns a field's name without the policy that it belongs to."""
    return _POLICY.sub("", name)


def _change(name: str, was: Any, now: Any, fixed: bool = False) -> Change:
    field = _of_policy(name)
    fixed = fixed or any(_within(field, each) for each in _FIXED)
    return Change(name, was, now, bool(fixed) and not any(_within(field, each) for each in _FREE))


def _is_text_of_list(name: str, value: Any) -> bool:
    return _of_policy(name) == "transforms" and isinstance(value, str)


def _within(name: str, field: str) -> bool:
    return name == field or name.startswith(f"{field}.")


def flat(settings: Any, prefix: str) -> dict[str, Any]:
    """Returns the values that are no dictionaries, by dotted name."""
    if not isinstance(settings, dict):
        value = _ADDRESS.sub("", settings) if isinstance(settings, str) else settings
        return {prefix.removesuffix("."): value}
    return {
        name: value
        for key, part in settings.items()
        for name, value in flat(part, f"{prefix}{key}.").items()
    }
