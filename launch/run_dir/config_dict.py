"""The settings of an experiment as plain data, for a file."""

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any

SCALARS = (bool, int, float, str)


def as_dict(settings: Any) -> dict[str, Any]:
    """Returns a dataclass's settings as nested dictionaries.

    A value that is no setting, such as a function, is replaced by its name.
    """
    return {field.name: plain(getattr(settings, field.name)) for field in setting_fields(settings)}


def setting_fields(settings: Any) -> list[dataclasses.Field[Any]]:
    """Returns the fields of a dataclass that are settings, which say what a run is."""
    return [field for field in dataclasses.fields(settings) if field.metadata.get("setting", True)]


def is_settings_tuple(value: Any) -> bool:
    """Returns True for dataclasses with names in a tuple, such as an experiment's transforms."""
    return (
        isinstance(value, tuple)
        and bool(value)
        and all(map(dataclasses.is_dataclass, value))
        and all(isinstance(getattr(part, "name", None), str) for part in value)
    )


def is_plain(value: Any) -> bool:
    """Returns whether a flag can give a value: a scalar, None, or a tuple of such values."""
    if type(value) is tuple:
        return all(map(is_plain, value))
    return value is None or (isinstance(value, SCALARS) and not isinstance(value, enum.Enum))


def is_plain_data(value: Any) -> bool:
    """Returns whether a file has a value itself: plain values, also in lists and dictionaries.

    Of others, such as functions, it has the names.
    """
    if type(value) is dict:
        return all(isinstance(key, str) and is_plain_data(part) for key, part in value.items())
    if type(value) in (tuple, list):
        return all(map(is_plain_data, value))
    return is_plain(value)


def as_tuples(value: Any) -> Any:
    """Returns lists, as JSON has them, as the tuples that settings have, at every depth."""
    return tuple(map(as_tuples, value)) if isinstance(value, (list, tuple)) else value


def is_settings_mapping(value: Any) -> bool:
    """Returns True for dataclasses by name, such as an experiment's policies."""
    return isinstance(value, Mapping) and any(map(dataclasses.is_dataclass, value.values()))


def plain(value: Any) -> Any:
    """Returns a setting as plain data; see `as_dict`."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return as_dict(value)
    if is_settings_tuple(value):
        return {part.name: as_dict(part) for part in value}
    if isinstance(value, Mapping):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, (tuple, list)):
        return tuple(map(plain, value))
    if value is None or isinstance(value, SCALARS):
        return value
    return getattr(value, "__qualname__", repr(value))
