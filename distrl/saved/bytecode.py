"""Detects bytecode in pickles: only the Python that wrote it can run it; another may crash."""

import platform
from pathlib import Path

from distrl.errors import ConfigError

_CODE = b"CodeType"  # by this name cloudpickle makes every code object


def has_bytecode(data: bytes) -> bool:
    """Returns whether a pickle has functions by value. Call it before loading the pickle."""
    return _CODE in data


def other_python(path: Path, saved_by: str) -> ConfigError | None:
    """Returns the error for a pickle that another Python wrote, so that this one cannot load it.

    Args:
      path: the pickle's file.
      saved_by: the version of Python that wrote it; "": unknown.

    Returns:
      The error; None: this Python wrote it, or one of the same minor version, or it is unknown.
    """
    same = saved_by.split(".")[:2] == list(platform.python_version_tuple()[:2])
    if same or not saved_by:
        return None
    return ConfigError(
        f"{path} has code that only Python {saved_by} can load, as it was saved by it; this is "
        f"Python {platform.python_version()}"
    )
