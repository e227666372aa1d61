"""Imports JAX without a garbage collection in the middle.

A collection while jaxlib (0.5.3) creates its pytree registries crashes. That happens in about one
import in a hundred, depending on the number of objects that exist before.
"""

import contextlib
import gc
import importlib
import os
import sys
from collections.abc import Iterator, Mapping


def import_jax() -> None:
    """Imports JAX unless it is imported already. Call it before anything else imports JAX."""
    if "jax" in sys.modules:
        return
    with no_garbage_collection():
        importlib.import_module("jax")


def set_environment(variables: Mapping[str, str]) -> None:
    """Sets environment variables of this process, before JAX makes its devices."""
    os.environ.update(variables)
    if "jax" in sys.modules and variables.get("JAX_PLATFORMS"):  # it has read them already
        sys.modules["jax"].config.update("jax_platforms", variables["JAX_PLATFORMS"])


@contextlib.contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Keeps the garbage collector off, for code that may import JAX."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
