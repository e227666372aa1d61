"""What a program's nodes are made of: Launchpad's, or our own where it is not installed.

`programs/program.py` makes nodes of either kind; `node_context.py` is what a node asks while it
runs. `builtin.py` has our own program and nodes, `rpc.py` the calls between them.
"""

import importlib.util
from typing import Any, Protocol

from distrl.errors import ConfigError

AUTO, LAUNCHPAD, BUILTIN = "auto", "launchpad", "builtin"
SUBSTRATES = (AUTO, LAUNCHPAD, BUILTIN)


class AnyProgram(Protocol):
    """A program of either kind: an `lp.Program` or a `builtin.Program`."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def groups(self) -> dict[str, list[Any]]:
        """Its nodes by their groups' labels."""


def missing(substrate: str) -> list[str]:
    """Returns the packages that a substrate needs and that are not installed."""
    needed = ("launchpad", "reverb") if substrate == LAUNCHPAD else ("grpc",)
    return [name for name in needed if importlib.util.find_spec(name) is None]


def resolve(substrate: str) -> str:
    """Returns the substrate that is taken: for "auto" Launchpad where it is installed.

    Raises:
      ConfigError: there is none of that name, or it is not installed.
    """
    if substrate not in SUBSTRATES:
        raise ConfigError(f"substrate: unknown name {substrate!r}; take {', '.join(SUBSTRATES)}")
    if substrate == AUTO:
        substrate = BUILTIN if missing(LAUNCHPAD) else LAUNCHPAD
        if missing(substrate):
            raise ConfigError(
                "programs of several nodes need grpcio (pip install grpcio) or, on Python 3.10, "
                "Launchpad and Reverb; --topology=single_process needs neither"
            )
    absent = missing(substrate)
    if absent and substrate == LAUNCHPAD:
        raise ConfigError(
            f"--substrate=launchpad: {' and '.join(absent)} is not installed (they support Python "
            "3.10 only); take --substrate=builtin"
        )
    if absent:
        raise ConfigError("--substrate=builtin needs grpcio: pip install grpcio")
    return substrate


def of_program(program: object) -> str:
    """Returns the substrate of a program; of one that does not say, it is Launchpad."""
    return str(getattr(program, "substrate", LAUNCHPAD))
