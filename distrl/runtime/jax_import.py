"""Imports JAX without a garbage collection in the middle.

A collection while jaxlib (0.5.3) creates its pytree registries crashes. That happens in about one
import in a hundred, depending on the number of objects that exist before.
"""

import gc
import importlib
import sys


def import_jax() -> None:
    """Imports JAX unless it is imported already. Call it before anything else imports JAX."""
    if "jax" in sys.modules:
        return
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        importlib.import_module("jax")
    finally:
        if was_enabled:
            gc.enable()
