"""RLax without TensorFlow.

`import rlax` imports TensorFlow Probability, which imports TensorFlow if it is installed: about
four seconds for nothing here. Every module imports RLax by

    from distrl.agents.losses.rlax_import import rlax
"""

import importlib
import sys
from types import ModuleType


def _import_rlax() -> ModuleType:
    if "rlax" in sys.modules or "tensorflow" in sys.modules:
        return importlib.import_module("rlax")
    sys.modules["tensorflow"] = None  # type: ignore[assignment]  # makes its import fail, for now
    try:
        return importlib.import_module("rlax")
    finally:
        del sys.modules["tensorflow"]


rlax = _import_rlax()
