"""How a running node learns that the program stops, and how it stops it, on either substrate."""

import threading
from collections.abc import Callable
from typing import Any

_here = threading.local()


class Manager:
    """The stop event of a builtin node, and what to call at the node's end. Main thread only.

    Its methods are those of Launchpad's worker manager that the launcher uses.
    """

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._closing: list[Callable[[], object]] = []

    def stop_event(self) -> threading.Event:
        """Returns the event that is set when the program stops."""
        return self._stop

    def stop_and_wait(self) -> None:
        """Sets the event."""
        self._stop.set()

    def on_close(self, function: Callable[[], object]) -> None:
        """Registers a function for `close` to call."""
        self._closing.append(function)

    def close(self) -> None:
        """Calls the registered functions, after the node's failure, if any, was reported."""
        while self._closing:
            self._closing.pop()()


def new_manager() -> Manager:
    """Makes the manager of the builtin node that runs in this thread."""
    _here.manager = Manager()
    return manager()


def manager() -> Manager:
    """Returns this thread's manager, of a builtin node."""
    return _here.manager


def enter(stopper: Callable[..., None]) -> None:
    """Notes how the builtin node that runs in this thread ends the program."""
    _here.stopper = stopper


def stop_event() -> Any:
    """Returns the event that is set when the program stops. In the node's main thread only."""
    if getattr(_here, "manager", None) is not None:
        return _here.manager.stop_event()
    import launchpad as lp

    return lp.stop_event()


def program_stopper() -> Callable[..., None]:
    """Returns the function that ends the program. In the node's main thread only."""
    if getattr(_here, "manager", None) is not None:
        return _here.stopper
    from launchpad import context

    return context.get_context().program_stopper
