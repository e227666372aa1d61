"""Imports JAX without a garbage collection in the middle, and TensorFlow without pandas.

A collection while jaxlib (0.5.3) creates its pytree registries crashes. That happens in about one
import in a hundred, depending on the number of objects that exist before.
"""

import contextlib
import gc
import importlib
import sys
from collections.abc import Iterator


def import_jax() -> None:
    """Imports JAX unless it is imported already. Call it before anything else imports JAX."""
    if "jax" in sys.modules:
        return
    with no_garbage_collection():
        importlib.import_module("jax")


@contextlib.contextmanager
def without_pandas() -> Iterator[None]:
    """Keeps TensorFlow (2.8), for code that imports it, from importing pandas where that exists.

    Its Keras does, which takes half a second; nothing here needs it.
    """
    if "pandas" in sys.modules:
        yield
        return
    sys.modules["pandas"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["pandas"]


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
