"""Serves a table in shared memory to clients on other machines.

A client's calls are numbered. The server keeps the answers to a client's last calls, so that a call
that is sent again, on another connection, is made once: an insert inserts once, and a batch taken
from a queue is not lost with a connection.
"""

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from distrl.errors import Blocked, ConfigError, SpecError, Stopped
from distrl.frame_sockets import frames
from distrl.frame_sockets.listener import FrameListener
from distrl.replay.config import ReplayConfig
from distrl.replay.served.calls import NAMES, Answer, Calls, Served, ServedClient, chunk
from distrl.replay.shared.handle import TableHandle
from distrl.replay.shared.table import SharedTable
from distrl.runtime.messages import MessageError
from distrl.types import Trajectory

KEPT_S = 150.0  # seconds to remember a client without connection: longer than it tries to return
_TEXT_LIMIT = 10_000  # characters of an error's text

_LOG = logging.getLogger(__name__)


class TableServer:
    """Serves a table until it is closed."""

    def __init__(
        self,
        table: SharedTable,
        struct: Trajectory,
        config: ReplayConfig,
        address: str,
        key: str,
        folder: Path | None = None,
        kept: float = KEPT_S,
    ) -> None:
        """Args:
        table: the table, which the caller still owns.
        struct: one stream at one step.
        config: the table's settings.
        address: "unix:/path" or "host:port", of this machine.
        key: the program's key, which a client must have.
        folder: the folder below which clients may save the table; None: nowhere.
        kept: seconds that a client without connection is remembered.

        Raises:
          OSError: the address is taken.
        """
        self._listener = FrameListener(address, key, "the table")
        self._kept = kept
        self._clients: dict[bytes, ServedClient] = {}
        self._lock = threading.Lock()
        handle = TableHandle(table, struct, config.sampler, "the table's server")
        self._limit = handle.columns.nbytes(chunk(handle.columns.nbytes(1)))
        self._served = Served(table, struct, config, handle, self._listener.stop, folder)
        self._listener.start(self._serve, self._forget)

    def _forget(self) -> None:
        """Forgets clients that have been away for long."""
        before = time.monotonic() - self._kept
        with self._lock:
            for client in list(self._clients.values()):
                if client.connections == 0 and client.left < before:
                    del self._clients[client.identity]
                    client.leave()

    def _serve(self, connection: frames.FrameSocket, identity: bytes, name: str) -> None:
        """Serves a client's connection until either end closes it."""
        with self._lock:
            client = self._clients.setdefault(identity, ServedClient(identity, name))
            client.connections += 1
        room, check_open = frames.Room(), self._listener.check_open
        try:
            while True:
                message, data = connection.receive(self._limit, check_open, room)
                connection.send(*self._answer(client, message, data), poll=check_open)
        finally:
            with self._lock:
                client.connections -= 1
                client.left = time.monotonic()

    def _answer(self, client: ServedClient, message: Any, data: frames.Bytes) -> Answer:
        """Returns the answer to a call, which is made unless it was already.

        Raises:
          MessageError: the message is no call.
          ConnectionError: the client has this answer, and has made a later call on another
          connection.
        """
        match message:
            case (int(number), str(name), tuple(args)) if 0 <= number < 2**62 and name in NAMES:
                call = getattr(Calls(self._served, client, number), name)
            case _:
                raise MessageError("a frame is not a call")
        with client.lock:
            if number > client.number:
                client.keep(number, self._made(lambda: call(data, *args)))
            if number not in client.answers:  # sent on a connection that the client has given up
                raise ConnectionError("the client has continued on another connection")
            return client.answers[number]

    def _made(self, call: Callable[[], Answer]) -> Answer:
        try:
            return call()
        except (Blocked, ConfigError, SpecError, Stopped) as error:
            return Answer(("error", type(error).__name__, str(error)[:_TEXT_LIMIT]))
        except Exception as error:
            _LOG.exception("a call of a client of the table failed")
            return Answer(("error", "PeerError", f"{type(error).__name__}: {error}"[:_TEXT_LIMIT]))

    def close(self) -> None:
        """Ends all calls and connections."""
        if self._listener.stop.is_set():
            return
        self._listener.close()
        with self._lock:
            for client in self._clients.values():
                if client.lock.acquire(timeout=2.0):
                    client.leave()
        self._served.handle.leave()
