"""What goes on around a node's function, in its process or its thread."""

import functools
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any

import courier

from distrl.errors import ConfigError, EnvironmentFault, SpecError, Stopped
from distrl.launch.supervision.node import Message

TRACEBACK_LIMIT = 50_000  # characters that are sent to the supervisor
COURIER_NODE = "launchpad.nodes.courier.node"


class Stopper:
    """What a node calls to stop the program.

    It is `launchpad.context.get_context().program_stopper`, and what `lp.stop()` calls. From any
    thread of the node. It returns at once; the node is then asked to stop like all others.
    The first request of a program decides how it ends.
    """

    def __init__(self, node: str, tell: Callable[[Message], None]) -> None:
        self._node = node
        self._tell = tell

    def __call__(
        self, reason: str = "", finished: bool = True, mark_as_completed: bool = False
    ) -> None:
        """Asks for the end.

        Args:
          reason: one line for the user.
          finished: the goal is reached (exit status 0), or not (1).
          mark_as_completed: taken because Launchpad's own stopper takes it; means nothing here.
        """
        del mark_as_completed
        reason = reason or f"{self._node} asked to stop"
        self._tell(Message(time.monotonic(), self._node, "stop", reason, finished))


class NodeReporter:
    """Tells the supervisor of a node's exceptions, each once."""

    def __init__(self, node: str, tell: Callable[[Message], None]) -> None:
        self.node = node
        self.tell = tell
        self._told: list[BaseException] = []

    def say(self, kind: str) -> None:
        self.tell(Message(time.monotonic(), self.node, kind))

    def failure(self, error: BaseException, where: str = "") -> None:
        """Writes the traceback to the node's own stderr and sends it."""
        if any(error is told for told in self._told):
            return
        self._told.append(error)
        now = time.monotonic()
        if isinstance(error, (ConfigError, SpecError)):  # its one line says all
            text = one_line(error) + where
            self.tell(Message(now, self.node, "failure", text, False, bad_input=True))
            return
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        sys.stderr.write(text)
        sys.stderr.flush()
        reason = one_line(error) + where
        self.tell(Message(now, self.node, "failure", reason, False, text[-TRACEBACK_LIMIT:]))


def one_line(error: BaseException) -> str:
    """The exception as "Type: message", on one line."""
    text = "".join(traceback.format_exception_only(type(error), error)).strip()
    if isinstance(error, EnvironmentFault):  # the environment's own traceback follows
        text = text.partition("\n")[0]
    return " ".join(text.split())[:500]


class ExceptionHooks:
    """While it is entered, two kinds of exception are told that would otherwise go unheard.

    One leaves a thread that a node has started. The other leaves the `run` of a CourierNode's
    instance: the node first stops its server, and waits for calls that are still being served,
    which may be for ever; and the callers' errors would be told before their cause.

    Args:
      owner: gives the Telling of the node that the current thread belongs to, or None.
    """

    def __init__(self, owner: Callable[[], NodeReporter | None]) -> None:
        self._owner = owner

    def __enter__(self) -> None:
        self._excepthook = threading.excepthook
        self._stop = courier.Server.Stop
        threading.excepthook = self._in_thread
        stop = self._stop
        owner = self._owner

        @functools.wraps(stop)
        def telling_stop(server: Any) -> Any:
            error = sys.exc_info()[1]
            telling = owner()
            caller = sys._getframe(1).f_globals.get("__name__")
            failed = isinstance(error, Exception) and not isinstance(error, Stopped)
            if failed and error is not None and telling is not None and caller == COURIER_NODE:
                telling.failure(error)
            return stop(server)

        courier.Server.Stop = telling_stop

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        threading.excepthook = self._excepthook
        courier.Server.Stop = self._stop

    def _in_thread(self, args: Any) -> None:
        telling = self._owner()
        if telling is None or args.exc_type is SystemExit or args.exc_value is None:
            self._excepthook(args)
        elif not isinstance(args.exc_value, Stopped):
            name = args.thread.name if args.thread else "unknown"
            telling.failure(args.exc_value, f" (in thread {name!r})")
