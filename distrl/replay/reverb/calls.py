"""Calls to a Reverb server with a deadline, and checks that it is alive.

Reverb's own calls have no deadline, or do not end when the program stops. Here each call runs in a
thread, which is abandoned if the call never returns.
"""

import threading
import time
from collections.abc import Callable
from typing import Any

from distrl.errors import DeadlineExceeded, ServerSilent
from distrl.replay.table.waiting import wait_until
from distrl.runtime.early_deadline import call_again_if_early

_CALL_TIMEOUT = 5  # seconds; an integer, for Reverb
_WATCH_INTERVAL = 2.0  # seconds of waiting between two checks that the server is alive


class ServerCalls:
    """Calls about one table. Thread safe."""

    def __init__(self, client: Any, table: str):
        """Args:
        client: a `reverb.Client`.
        table: the table's name.
        """
        self._client = client
        self._table = table

    def __str__(self) -> str:
        return f"table {self._table!r} at {self._client.server_address}"

    def call(
        self,
        function: Callable[[], Any],
        what: str,
        stop: threading.Event | None,
        timeout: float = _CALL_TIMEOUT,
    ) -> Any:
        """Returns the function's result.

        Args:
          function: the call.
          what: describes it, for messages.
          stop: set when the program stops.
          timeout: seconds.

        Raises:
          Stopped: `stop` was set first.
          ServerSilent: the server did not answer in time.
          RuntimeError: it answered with an error.
        """
        changed = threading.Condition()
        results: list[Any] = []
        failures: list[Exception] = []

        def run() -> None:
            try:
                value, into = function(), results
            except Exception as error:  # raised in the caller, below
                value, into = error, failures
            with changed:
                into.append(value)
                changed.notify_all()

        threading.Thread(target=run, name=f"{what} of {self._table}", daemon=True).start()
        silent = ServerSilent(f"{what} of {self}: the server did not answer in {timeout:g} s")
        with changed:
            try:
                wait_until(
                    changed,
                    lambda: bool(results or failures),
                    stop=stop,
                    timeout=timeout + 1.0,
                    what=lambda: f"{what} of {self}",
                )
            except DeadlineExceeded as late:  # a call that has no deadline of its own
                raise silent from late
        if results:
            return results[0]
        error = failures[0]
        if "deadline" in f"{type(error).__name__} {error}".lower():
            raise silent from error
        raise RuntimeError(f"{what} of {self}: {error}") from error

    def info(self, stop: threading.Event | None) -> Any:
        """Returns Reverb's `TableInfo` of the table. Raises as `call`."""

        def ask() -> Any:
            tables = call_again_if_early(
                lambda: self._client.server_info(timeout=_CALL_TIMEOUT), _CALL_TIMEOUT
            )
            if self._table not in tables:
                raise RuntimeError(
                    f"the server has no such table; it has {sorted(tables) or 'none'}: "
                    "is it another program's?"
                )
            return tables[self._table]

        return self.call(ask, "info", stop)

    def watch(self) -> Callable[[], None]:
        """Returns a function to be called repeatedly during a wait for the server.

        It never blocks. It raises ServerSilent or RuntimeError if the server does not answer, or
        has no such table.
        """
        due = time.monotonic() + _WATCH_INTERVAL
        check: threading.Thread | None = None
        failures: list[Exception] = []

        def ask() -> None:
            try:
                self.info(None)
            except (DeadlineExceeded, RuntimeError) as error:
                failures.append(error)

        def look() -> None:
            nonlocal due, check
            if failures:
                raise failures[0]
            if check is not None and check.is_alive():
                return
            if time.monotonic() >= due:
                due = time.monotonic() + _WATCH_INTERVAL
                check = threading.Thread(target=ask, name=f"watch {self._table}", daemon=True)
                check.start()

        return look
