"""Bytecode in pickles, which only the Python that wrote it can run: another may crash on it."""

import platform
from pathlib import Path

from distrl.errors import ConfigError

_CODE = b"CodeType"  # by this name cloudpickle makes every code object


def has_bytecode(data: bytes) -> bool:
    """Returns whether a pickle has functions by value. To be asked before it is loaded."""
    return _CODE in data


def other_python(path: Path, saved_by: str) -> ConfigError | None:
    """Returns the error of a pickle that another Python wrote and this one cannot load.

    Args:
      path: the pickle's file.
      saved_by: the version of Python that wrote it; "": unknown.

    Returns:
      None: it is of this Python, whose minor version counts, or that is unknown.
    """
    same = saved_by.split(".")[:2] == list(platform.python_version_tuple()[:2])
    if same or not saved_by:
        return None
    return ConfigError(
        f"{path} has code that only Python {saved_by} can load, as it was saved by it; this is "
        f"Python {platform.python_version()}"
    )
