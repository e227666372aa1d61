"""JAX, imported without a garbage collection in the middle.

jaxlib (0.5.3) makes its pytree registries in such a way that a collection meets them half made, and
crashes: about one import in a hundred, by the number of objects that were there before.
"""

import gc
import importlib
import sys


def import_jax() -> None:
    """Imports JAX, if it is not there yet. To be called before whatever else imports it."""
    if "jax" in sys.modules:
        return
    collects = gc.isenabled()
    gc.disable()
    try:
        importlib.import_module("jax")
    finally:
        if collects:
            gc.enable()
