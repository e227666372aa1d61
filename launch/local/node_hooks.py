"""Reports from a node's process or thread to the supervisor."""

import functools
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any

from distrl.errors import (
    CallbackError,
    ConfigError,
    Diverged,
    SaveError,
    SharedMemoryLost,
    SpecError,
    Stopped,
)
from distrl.launch.local.debugging import explain_quit
from distrl.launch.supervision.journal import ALL_FRAMES
from distrl.launch.supervision.node import Message
from distrl.runtime.traceback_text import describe_error, fold

TRACEBACK_LIMIT = 30_000  # characters for the supervisor; as JSON they must fit into a message
COURIER_NODE = "launchpad.nodes.courier.node"


class Stopper:
    """A node's way to end the program, from any of its threads.

    It is `launchpad.context.get_context().program_stopper`, and what `lp.stop()` calls. It returns
    immediately; the node is then asked to stop like all others. The first call in a program decides
    how the program ends.

    Args:
      node: the node's name.
      send: takes messages for the supervisor.
    """

    def __init__(self, node: str, send: Callable[[Message], None]) -> None:
        self._node = node
        self._send = send

    def __call__(
        self,
        reason: str = "",
        finished: bool = True,
        mark_as_completed: bool = False,
        traceback: str | None = None,
    ) -> None:
        """Asks for the end of the program.

        Args:
          reason: one line for the user.
          finished: True if the goal is reached (exit status 0), False for a failure (1).
          mark_as_completed: ignored; Launchpad's own stopper has it.
          traceback: the traceback of an exception that the node raises when it has saved.
        """
        del mark_as_completed
        reason = reason or f"{self._node} asked to stop"
        traceback = traceback and traceback[-TRACEBACK_LIMIT:]
        self._send(Message(time.monotonic(), self._node, "stop", reason, finished, traceback))


class NodeReporter:
    """Reports a node's state and its exceptions to the supervisor, each exception once.

    Args:
      node: the node's name.
      send: takes messages for the supervisor.
    """

    def __init__(self, node: str, send: Callable[[Message], None]) -> None:
        self._node = node
        self._send = send
        self._reported: list[BaseException] = []

    def say(self, kind: str) -> None:
        """Sends a message without a reason; see `Message.kind`."""
        self._send(Message(time.monotonic(), self._node, kind))

    def failure(self, error: BaseException, where: str = "") -> None:
        """Writes the traceback to the node's own stderr, folded, and sends all of it.

        Args:
          error: the exception.
          where: appended to its one line.
        """
        if any(error is reported for reported in self._reported):
            return
        self._reported.append(error)
        now = time.monotonic()
        reason = describe_error(error) + explain_quit(error) + where
        bad_input = isinstance(error, (ConfigError, SpecError))
        # Its one line says all.
        if bad_input or isinstance(error, (Diverged, SaveError, SharedMemoryLost)):
            self._send(
                Message(now, self._node, "failure", reason, False, bad_input=bad_input, final=True)
            )
            return
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        sys.stderr.write(fold(text, ALL_FRAMES))
        sys.stderr.flush()
        text = text[-TRACEBACK_LIMIT:]
        final = isinstance(error, CallbackError)
        self._send(Message(now, self._node, "failure", reason, False, text, final=final))


class ExceptionHooks:
    """While entered, reports two kinds of exceptions that would otherwise go unnoticed.

    One is raised in a thread that a node has started. The other is raised by the `run` of a
    CourierNode's instance: the node first stops its server and waits for calls in progress,
    possibly forever, so that the callers' errors would be reported before their cause.

    Args:
      reporter: returns the reporter of the node that the current thread belongs to, or None.
    """

    def __init__(self, reporter: Callable[[], NodeReporter | None]) -> None:
        self._reporter = reporter

    def __enter__(self) -> None:
        self._excepthook = threading.excepthook
        threading.excepthook = self._in_thread
        self._courier = sys.modules.get("courier")  # Launchpad brings it
        if self._courier is None:
            return
        self._stop = stop = self._courier.Server.Stop

        @functools.wraps(stop)
        def reporting_stop(server: Any) -> Any:
            error = sys.exc_info()[1]
            reporter = self._reporter()
            caller = sys._getframe(1).f_globals.get("__name__")
            failed = isinstance(error, Exception) and not isinstance(error, Stopped)
            if failed and error is not None and reporter is not None and caller == COURIER_NODE:
                reporter.failure(error)
            return stop(server)

        self._courier.Server.Stop = reporting_stop

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        threading.excepthook = self._excepthook
        if self._courier is not None:
            self._courier.Server.Stop = self._stop

    def _in_thread(self, args: Any) -> None:
        reporter = self._reporter()
        if reporter is None or args.exc_type is SystemExit or args.exc_value is None:
            self._excepthook(args)
        elif not isinstance(args.exc_value, Stopped):
            name = args.thread.name if args.thread else "unknown"
            reporter.failure(args.exc_value, f" (in thread {name!r})")
