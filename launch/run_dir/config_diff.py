"""What has changed between the settings of a checkpoint and those of now."""

import dataclasses
import re
from typing import Any, NamedTuple

from distrl.experiment import Experiment
from distrl.launch.run_dir.config_dict import as_dict

# Fields, and all that is in them, that fix shapes or what numbers mean; and exceptions to them.
_FIXED = (
    "environment", "transforms", "task", "agent.network", "replay.table", "replay.unroll_length",
)  # fmt: skip
_FREE = ("environment.num_threads", "environment.pool", "environment.return_threshold")
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # in the name of a function


class Change(NamedTuple):
    """A field with another value than in the checkpoint."""

    field: str
    was: Any
    now: Any
    fixed: bool  # the run cannot go on with it


def describe(experiment: Experiment) -> dict[str, Any]:
    """The settings as plain data: "experiment", nested, and "classes" by field."""
    return {"experiment": as_dict(experiment), "classes": _classes(experiment, "")}


def _classes(settings: Any, prefix: str) -> dict[str, str]:
    """The names of the dataclasses in it, by field."""
    found = {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        parts = value if isinstance(value, tuple) else (value,)
        for part in parts:
            if dataclasses.is_dataclass(part) and not isinstance(part, type):
                name = f"{prefix}{field.name}"
                if isinstance(value, tuple):
                    name += f".{getattr(part, 'name', type(part).__name__)}"
                found[name] = type(part).__qualname__
                found.update(_classes(part, f"{name}."))
    return found


def goal(settings: dict[str, Any]) -> Any:
    """The part of `describe` that says when a run ends."""
    return settings["experiment"].get("goal")


def compare(old: dict[str, Any], new: dict[str, Any]) -> list[Change]:
    """The fields that differ.

    Args:
      old: what `describe` gave, read from a file; empty: nothing is known.
      new: the same of now, as from a file.
    """
    if "experiment" not in old:
        return []
    found = []
    classes = old["classes"], new["classes"]
    others = sorted(
        name
        for name in classes[0].keys() | classes[1].keys()
        if classes[0].get(name) != classes[1].get(name)
    )
    for name in others:
        found.append(_change(name, classes[0].get(name), classes[1].get(name), name == "agent"))
    was, now = _flat(old["experiment"], ""), _flat(new["experiment"], "")
    for name in [*now, *(name for name in was if name not in now)]:
        if was.get(name) != now.get(name) and not any(_within(name, other) for other in others):
            found.append(_change(name, was.get(name), now.get(name)))
    return found


def _change(name: str, was: Any, now: Any, fixed: bool = False) -> Change:
    fixed = fixed or any(_within(name, field) for field in _FIXED)
    return Change(name, was, now, fixed and not any(_within(name, field) for field in _FREE))


def _within(name: str, field: str) -> bool:
    return name == field or name.startswith(f"{field}.")


def _flat(settings: Any, prefix: str) -> dict[str, Any]:
    """By dotted name, what is no dictionary."""
    if not isinstance(settings, dict):
        value = _ADDRESS.sub("", settings) if isinstance(settings, str) else settings
        return {prefix.removesuffix("."): value}
    return {
        name: value
        for key, part in settings.items()
        for name, value in _flat(part, f"{prefix}{key}.").items()
    }
