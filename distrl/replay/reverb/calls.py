"""Calls to a Reverb server with a deadline, and a watch over whether it lives.

Reverb's own calls wait for ever, or without hearing that the program stops. Here each runs in a
thread of its own, which is left behind if the call never returns.
"""

import threading
import time
from collections.abc import Callable
from typing import Any

from distrl.errors import DeadlineExceeded
from distrl.replay.table.waiting import wait_until

_CALL_TIMEOUT = 5  # seconds; whole ones, for Reverb
_WATCH_INTERVAL = 2.0  # seconds of waiting after which the server is asked whether it lives


class ServerSilent(DeadlineExceeded):
    """A Reverb server did not answer: it is dead, or cannot be reached."""


class ServerCalls:
    """Calls about one table. Thread safe."""

    def __init__(self, client: Any, table: str):
        """Args:
        client: a `reverb.Client`.
        table: name.
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
        """The function's result, within `timeout` seconds.

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
        with changed:
            wait_until(
                changed,
                lambda: bool(results or failures),
                stop=stop,
                timeout=timeout + 1.0,
                what=lambda: f"{what} of {self}",
            )
        if results:
            return results[0]
        error = failures[0]
        if "deadline" in f"{type(error).__name__} {error}".lower():
            raise ServerSilent(
                f"{what} of {self}: the server did not answer in {_CALL_TIMEOUT} s"
            ) from error
        raise RuntimeError(f"{what} of {self}: {error}") from error

    def info(self, stop: threading.Event | None) -> Any:
        """Reverb's `TableInfo` of the table. Raises as `call`."""

        def ask() -> Any:
            tables = self._client.server_info(timeout=_CALL_TIMEOUT)
            if self._table not in tables:
                raise RuntimeError(
                    f"the server has no such table, but {sorted(tables) or 'none'}; "
                    "is it another program's?"
                )
            return tables[self._table]

        return self.call(ask, "info", stop)

    def watch(self) -> Callable[[], None]:
        """A watch over the server during one wait: a function to call again and again in it.

        The function never waits. It raises ServerSilent or RuntimeError when the server does
        not answer, or has no such table.
        """
        due = time.monotonic() + _WATCH_INTERVAL
        asking: threading.Thread | None = None
        lost: list[Exception] = []

        def ask() -> None:
            try:
                self.info(None)
            except (DeadlineExceeded, RuntimeError) as error:
                lost.append(error)

        def look() -> None:
            nonlocal due, asking
            if lost:
                raise lost[0]
            if asking is not None and asking.is_alive():
                return
            if time.monotonic() >= due:
                due = time.monotonic() + _WATCH_INTERVAL
                asking = threading.Thread(target=ask, name=f"watch {self._table}", daemon=True)
                asking.start()

        return look
