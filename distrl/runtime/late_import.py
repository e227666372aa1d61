"""Delays the import of modules that others import but hardly use to their first use."""

import contextlib
import importlib
import sys
from collections.abc import Iterator, Mapping
from types import MappingProxyType, ModuleType
from typing import Any


class LateModule(ModuleType):
    """Stands for a module, and imports it at the first access to an attribute."""

    def __init__(self, name: str, known: Mapping[str, Any] = MappingProxyType({})):
        """Args:
        name: the module's name.
        known: attributes for which it need not be imported.
        """
        super().__init__(name)
        self.__dict__.update(known)

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):  # Python's own look-ups, such as `__path__`
            raise AttributeError(attribute)
        name = self.__name__
        if sys.modules.get(name) is self:
            del sys.modules[name]
        with without("tensorflow"):
            return getattr(importlib.import_module(name), attribute)


@contextlib.contextmanager
def imported_late(name: str, **known: Any) -> Iterator[None]:
    """Makes the block import a `LateModule` instead of a module that is not imported yet.

    Args:
      name: the module's name.
      **known: see `LateModule`.
    """
    if name in sys.modules:
        yield
        return
    late = sys.modules[name] = LateModule(name, known)
    try:
        yield
    finally:
        if sys.modules.get(name) is late:
            del sys.modules[name]


@contextlib.contextmanager
def without(name: str) -> Iterator[None]:
    """Makes a module's import fail in the block, for code that can do without it.

    A module that is imported already stays.
    """
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        if sys.modules.get(name, ...) is None:
            del sys.modules[name]
