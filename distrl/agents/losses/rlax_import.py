"""Imports RLax without Distrax, which takes a second and more.

`import rlax` imports Distrax, for functions that are deprecated, and with it TensorFlow
Probability. Every module imports RLax by

    from distrl.agents.losses.rlax_import import rlax
"""

import importlib
from types import ModuleType
from typing import Any

from distrl.runtime.late_import import imported_late


def _import_rlax() -> ModuleType:
    with imported_late("distrax", DistributionLike=Any):  # the one name that it uses at once
        return importlib.import_module("rlax")


rlax = _import_rlax()
