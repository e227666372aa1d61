"""A debugger for nodes: pdb in the launcher's terminal, or debugpy for an editor."""

import bdb
import contextlib
import dataclasses
import os
import pdb
import re
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

from distrl.errors import ConfigError, EnvironmentFault, Stopped
from distrl.launch.launch_types import LOCAL_MP

_SPEC = re.compile(r"([^:]+?)(?::(\d+))?")
_terminal = threading.Lock()  # held by the thread whose debugger uses the terminal
_has_terminal = True


@dataclasses.dataclass(frozen=True)
class Debug:
    """The node to debug, and how.

    Attributes:
      node: its name, "actor/0".
      port: port on loopback where debugpy waits for an editor; None: pdb, in this terminal.
    """

    node: str
    port: int | None = None

    @classmethod
    def parse(cls, text: str) -> "Debug":
        """Parses NODE or NODE:PORT.

        Raises:
          ConfigError: `text` is neither.
        """
        match = _SPEC.fullmatch(text)
        if match is None or not match[1]:
            raise ConfigError(f"--debug={text}: write NODE or NODE:PORT, as in --debug=actor/0")
        return cls(match[1], int(match[2]) if match[2] else None)

    @classmethod
    def of_flag(cls, text: str | None, launch_type: str) -> "Debug | bool":
        """Returns the `debug` argument of a launch for the value of --debug.

        Raises:
          ConfigError: the value does not suit the launch type.
        """
        if text is None:
            return False
        in_processes = launch_type == LOCAL_MP
        if in_processes == (text == "all"):
            raise ConfigError(
                f"--debug={text}: with --lp_launch_type={launch_type} use "
                + ("--debug=NODE, as in --debug=actor/0" if in_processes else "--debug=all")
            )
        return cls.parse(text) if in_processes else True

    def run(self, name: str, function: Callable[[], Any]) -> None:
        """Runs a node's function under the debugger.

        Args:
          name: the node's name.
          function: what the node runs; its exception is raised after the debugger has seen it.
        """
        if self.port is not None:
            import debugpy

            debugpy.listen(("127.0.0.1", self.port))
            print(f"{name}: debugpy waits for an editor at 127.0.0.1:{self.port}", flush=True)
            debugpy.wait_for_client()
            function()
            return
        print(
            f"{name} runs in this terminal; breakpoint() and exceptions open pdb here", flush=True
        )
        with breakpoints_in_terminal():
            try:
                function()
            except Exception as error:
                post_mortem(error)
                raise


def post_mortem(error: BaseException) -> None:
    """Opens pdb where an exception was raised, except for those that only end the program."""
    if isinstance(error, (Stopped, ConfigError)):
        return
    if isinstance(error, EnvironmentFault) and error.original is not None:
        error = error.original
    if isinstance(error, bdb.BdbQuit):  # the user has left the debugger
        return
    with _terminal:
        debugger = _debugger()
        debugger.message(f"{type(error).__name__}: {error}")
        debugger.reset()
        debugger.interaction(None, error.__traceback__)


@contextlib.contextmanager
def breakpoints_in_terminal() -> Iterator[None]:
    """Makes `breakpoint()` use the process's own terminal, even where sys.stdout is replaced."""

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


def use_no_terminal() -> None:
    """Notes that this process and its nodes have no terminal, as when `distrl.train` starts them.

    No user types into their stdin, so pdb would quit at once. The hook of an editor's debugger,
    which follows the caller's processes, stays.
    """
    global _has_terminal
    _has_terminal = False
    if sys.breakpointhook is sys.__breakpointhook__:
        skip_breakpoints("all")


def check_terminal(flag: str | None, in_nodes: bool) -> None:
    """Refuses pdb in a process without a terminal.

    Args:
      flag: the value of --debug.
      in_nodes: whether the program has nodes, where an editor may debug one.

    Raises:
      ConfigError: pdb would have no terminal, or `flag` is malformed.
    """
    if _has_terminal or flag is None or (in_nodes and Debug.parse(flag).port is not None):
        return
    raise ConfigError(
        f"--debug={flag}: there is no terminal for pdb here: run `distrl train "
        "--experiment=FILE.py` with it"
        + (", or take --debug=NODE:PORT for an editor" if in_nodes else "")
    )


def skip_breakpoints(node: str) -> None:
    """Makes `breakpoint()` print a line, once for each place: a node has no terminal to stop in.

    A hook of the user's (PYTHONBREAKPOINT) stays.

    Args:
      node: name of the node that this process runs, or "all", as for --debug.
    """
    if "PYTHONBREAKPOINT" in os.environ:
        return
    printed: set[str] = set()
    start = "start" if _has_terminal else "run `distrl train --experiment=FILE.py`"

    def skip(*args: Any, **kwargs: Any) -> None:
        frame = sys._getframe(1)
        where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        if where not in printed:
            printed.add(where)
            line = f"{where}: breakpoint() is skipped: to stop here, {start} with --debug={node}"
            print(line, file=sys.stderr, flush=True)

    sys.breakpointhook = skip


def explain_quit(error: BaseException) -> str:
    """Returns what to add to the line about an exception that a debugger has raised; else ""."""
    original = error.original if isinstance(error, EnvironmentFault) else None
    if not any(isinstance(each, bdb.BdbQuit) for each in (error, original)):
        return ""
    return " (a debugger was quit, or has no terminal: --debug=NODE runs a node in yours)"


def _debugger() -> pdb.Pdb:
    # Without `nosigint` pdb would take over Ctrl-C, which is the launcher's.
    return pdb.Pdb(stdin=sys.__stdin__, stdout=sys.__stdout__, nosigint=True)
