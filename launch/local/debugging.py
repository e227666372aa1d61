"""A debugger for one node: pdb in the launcher's terminal, or debugpy for an editor."""

import contextlib
import dataclasses
import pdb
import re
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

from distrl.errors import ConfigError, EnvironmentFault, Stopped

_SPEC = re.compile(r"([^:]+?)(?::(\d+))?")
_terminal = threading.Lock()  # one thread at a time talks to the user


@dataclasses.dataclass(frozen=True)
class Debug:
    """Which node is debugged, and how.

    Attributes:
      node: its name, "actor/0".
      port: where debugpy waits for an editor, on loopback; None: pdb, in this terminal.
    """

    node: str
    port: int | None = None

    @classmethod
    def parse(cls, text: str) -> "Debug":
        """From NODE or NODE:PORT. Raises ConfigError."""
        match = _SPEC.fullmatch(text)
        if match is None or not match[1]:
            raise ConfigError(f"--debug={text}: write NODE or NODE:PORT, as in --debug=actor/0")
        return cls(match[1], int(match[2]) if match[2] else None)

    def run(self, name: str, function: Callable[[], Any]) -> None:
        """Runs the node's function; its breakpoints, and its exception, come to the user."""
        if self.port is not None:
            import debugpy

            debugpy.listen(("127.0.0.1", self.port))
            print(f"{name}: debugpy waits for an editor at 127.0.0.1:{self.port}", flush=True)
            debugpy.wait_for_client()
            function()
            return
        print(f"{name} runs in this terminal; breakpoint() and its failure stop in pdb", flush=True)
        with stopping_here():
            try:
                function()
            except Exception as error:
                post_mortem(error)
                raise


def post_mortem(error: BaseException) -> None:
    """Opens pdb where the exception was raised, unless it only says that the program stops."""
    if isinstance(error, (Stopped, ConfigError)):
        return
    if isinstance(error, EnvironmentFault) and error.original is not None:
        error = error.original
    with _terminal:
        debugger = _debugger()
        debugger.message(f"{type(error).__name__}: {error}")
        debugger.reset()
        debugger.interaction(None, error.__traceback__)


@contextlib.contextmanager
def stopping_here() -> Iterator[None]:
    """Has `breakpoint()` stop in the process's own terminal, whatever is put in sys.stdout."""

    def stop(*args: Any, **kwargs: Any) -> None:
        frame: types.FrameType | None = sys._getframe(1)
        with _terminal:
            _debugger().set_trace(frame)

    before = sys.breakpointhook
    sys.breakpointhook = stop
    try:
        yield
    finally:
        sys.breakpointhook = before


def _debugger() -> pdb.Pdb:
    # Without `nosigint` it would take over Ctrl-C, which is the launcher's.
    return pdb.Pdb(stdin=sys.__stdin__, stdout=sys.__stdout__, nosigint=True)
