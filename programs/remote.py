"""What a node knows of the others: calls that name them, reports, and its seat at the board."""

import concurrent.futures
import threading
import time
from collections.abc import Callable
from typing import Any

import launchpad as lp

from distrl.errors import PeerError, Stopped
from distrl.metrics import Report, first_number
from distrl.runtime.heartbeat import DOWN, GONE, UP, current_heartbeat, main_thread_heartbeat

COMES_BACK = 120.0  # seconds that a call waits for a node that is started again
_NOTICED = 1.0  # seconds within which a death is noticed
_LOOK = 0.05  # seconds between two looks at the board
_MAX_UNSENT = 300  # reports; half a minute of a monitor that does not answer


class Peer:
    """A Courier client whose errors name the peer. Its deadline comes with the handle.

    While the peer is started again, a call waits for it, and is made once more: what is called
    must bear to be called twice, which Courier may do by itself too.
    """

    def __init__(self, client: Any, name: str):
        """Args: client: a courier.Client. name: of the node behind it."""
        self._client = client
        self._name = name
        heartbeats = current_heartbeat().table
        self._heartbeat = heartbeats.of(name) if heartbeats is not None else None
        self._stop = lp.stop_event()

    def __getattr__(self, method: str) -> Callable[..., Any]:
        remote = getattr(self._client, method)

        def call(*args: Any) -> Any:
            mine = main_thread_heartbeat()
            mine.wait()
            try:
                while True:
                    life = self._heartbeat.life if self._heartbeat is not None else 0
                    try:
                        return remote(*args)
                    except Exception as error:
                        self._check_comes_back(life, f"{self._name}.{method}() failed", error)
            finally:
                mine.tick()

        setattr(self, method, call)
        return call

    def _check_comes_back(self, life: int, what: str, error: Exception) -> None:
        """Returns when the peer, of whose `life` a call failed, has begun another.

        Raises:
          Stopped: the program stops.
          PeerError: it has not, or not in time.
        """
        heartbeat = self._heartbeat
        deadline = time.monotonic() + COMES_BACK
        while heartbeat is not None and heartbeat.status in (UP, DOWN):
            if heartbeat.status == UP and heartbeat.life != life:
                return
            # A process that has just died still counts as up for a moment.
            if heartbeat.status == UP and time.monotonic() > deadline - COMES_BACK + _NOTICED:
                break
            if time.monotonic() > deadline:
                break
            if self._stop.wait(_LOOK):
                raise Stopped(f"{what}: the program stops") from error
        if heartbeat is not None and heartbeat.status == GONE:
            raise PeerError(f"{what}: {self._name} has ended") from error
        raise PeerError(f"{what}: {error}") from error


class Reporter:
    """Sends a node's reports to the monitor, in order, without waiting for it."""

    def __init__(self, monitor: Any, node: str):
        """Args: monitor: a courier.Client of `MonitorNode`. node: the sender's name."""
        self._monitor = monitor
        self._node = node
        self._number = first_number(current_heartbeat().life)  # above all those of the lives before
        self._unsent: list[Report] = []
        self._sending: concurrent.futures.Future | None = None

    def __call__(self, report: Report) -> None:
        """Sends `report`, or keeps it until the one before has arrived.

        Raises:
          PeerError: the monitor failed, or has not answered for long.
        """
        self._unsent.append(report)
        if self._sending is not None:
            if not self._sending.done():
                if len(self._unsent) > _MAX_UNSENT:
                    raise PeerError(f"monitor/0 has left {_MAX_UNSENT} reports unanswered")
                return
            self._finish(0)
        self._sending = self._monitor.futures.report(self._node, self._number, self._unsent)
        self._number += 1
        self._unsent = []

    def flush(self, timeout: float = 2.0) -> None:
        """Sends what is left, within `timeout` seconds for each of the two calls at most.

        To be called where no report follows for long: the newest may not have been sent.

        Raises:
          PeerError: the monitor failed, or has not answered.
        """
        self._finish(timeout)
        if self._unsent:
            self._sending = self._monitor.futures.report(self._node, self._number, self._unsent)
            self._unsent = []
            self._finish(timeout)

    def _finish(self, timeout: float) -> None:
        if self._sending is None:
            return
        try:
            self._sending.result(timeout)
        except Exception as error:
            raise PeerError(f"monitor/0.report() failed: {error!r}") from error
        self._sending = None


def stop_and_tick(stop: threading.Event) -> Callable[[], bool]:
    """For loops that ask at each turn whether to stop: says that the node gets on, too."""
    heartbeat = current_heartbeat()

    def asked_to_stop() -> bool:
        heartbeat.tick()
        return stop.is_set()

    return asked_to_stop
