"""Serves a table in shared memory to clients on other machines.

A client's calls are numbered. The server keeps the answers to a client's last calls, so that a call
that is sent again, on another connection, is made once: an insert inserts once, and a batch taken
from a queue is not lost with a connection.
"""

import contextlib
import hmac
import logging
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from distrl.errors import Blocked, ConfigError, SpecError, Stopped
from distrl.replay.config import ReplayConfig
from distrl.replay.served import frames
from distrl.replay.served.calls import NAMES, Answer, Calls, Client, Served, chunk
from distrl.replay.shared.handle import TableHandle
from distrl.replay.shared.table import SharedTable
from distrl.runtime.messages import MessageError
from distrl.types import Trajectory

KEPT_S = 150.0  # that a client without connection is remembered: longer than it tries to return
_GREETING_S = 2.0  # for the proof of the key
_STRANGERS = 64  # connections at a time that have not shown the key
_RETRY_S = 1.0
_TEXT_LIMIT = 10_000  # characters of an error

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
        table: the table, which stays the caller's.
        struct: one stream at one step.
        config: the table's settings.
        address: "unix:/path" or "host:port", of this machine.
        key: the program's; a client must have it.
        folder: clients have the table saved in folders below it; None: nowhere.
        kept: seconds that a client without connection is remembered.

        Raises:
          OSError: the address is taken.
        """
        self._proof, self._kept = frames.proof(key), kept
        self._listener = frames.listen(address)
        self._stop = threading.Event()
        self._clients: dict[bytes, Client] = {}
        self._lock = threading.Lock()
        self._strangers = threading.BoundedSemaphore(_STRANGERS)
        handle = TableHandle(table, struct, config.sampler, "the table's server")
        self._served = Served(table, struct, config, handle, self._stop, folder)
        self._limit = handle.columns.nbytes(chunk(handle.columns.nbytes(1)))
        self._listener.settimeout(0.5)
        self._thread = threading.Thread(target=self._accept, name="serve table", daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while not self._stop.is_set():
            try:
                sock, _ = self._listener.accept()
            except TimeoutError:
                self._forget()
                continue
            except OSError as error:  # no descriptor is left, perhaps
                if self._stop.is_set():
                    return
                _LOG.warning("no client of the table can connect: %s", error)
                self._stop.wait(_RETRY_S)
                continue
            if not self._strangers.acquire(blocking=False):
                sock.close()
                continue
            threading.Thread(
                target=self._serve, args=(sock,), name="serve a client", daemon=True
            ).start()

    def _forget(self) -> None:
        """Forgets clients that have been away for long."""
        before = time.monotonic() - self._kept
        with self._lock:
            for client in list(self._clients.values()):
                if client.connections == 0 and client.left < before:
                    del self._clients[client.identity]
                    client.leave()

    def _serve(self, sock: socket.socket) -> None:
        """Serves a connection until either end closes it."""
        with contextlib.closing(frames.FrameSocket(sock)) as connection:
            try:
                client = self._greeted(connection)
            finally:
                self._strangers.release()
            if client is None:
                return
            try:
                self._serve_client(connection, client)
            except (OSError, Stopped):
                return  # the client is gone, or this closes
            except MessageError as error:
                _LOG.warning("a client of the table was cut off: %s", error)
            finally:
                with self._lock:
                    client.connections -= 1
                    client.left = time.monotonic()

    def _serve_client(self, connection: frames.FrameSocket, client: Client) -> None:
        room = frames.Room()
        while True:
            message, data = connection.receive(self._limit, self._check_open, room)
            connection.send(*self._answer(client, message, data), poll=self._check_open)

    def _check_open(self) -> None:
        if self._stop.is_set():
            raise Stopped("the table's server closes")

    def _greeted(self, connection: frames.FrameSocket) -> Client | None:
        """Returns the client of a new connection; None: it has not the key."""
        greeting = bytearray(frames.GREETING_BYTES)
        try:
            connection.receive_into(memoryview(greeting), None, total=_GREETING_S)
        except OSError:
            return None
        proof, identity, name = frames.greeted(bytes(greeting))
        if not hmac.compare_digest(proof, self._proof):
            return None
        with self._lock:
            client = self._clients.setdefault(identity, Client(identity, name))
            client.connections += 1
            return client

    def _answer(self, client: Client, message: Any, data: frames.Bytes) -> Answer:
        """Returns the answer to a call, which is made unless it was already.

        Raises:
          MessageError: it is no call.
          ConnectionError: the client has this answer: it has made a later call, elsewhere.
        """
        match message:
            case (int(number), str(name), tuple(args)) if 0 <= number < 2**62 and name in NAMES:
                call = getattr(Calls(self._served, client, number), name)
            case _:
                raise MessageError("a frame is no call")
        with client.lock:
            if number > client.number:
                client.keep(number, self._made(lambda: call(data, *args)))
            if number not in client.answers:  # it lay in a connection that the client has given up
                raise ConnectionError("the client has gone on, on another connection")
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
        if self._stop.is_set():
            return
        self._stop.set()
        with contextlib.suppress(OSError):  # nobody can wait in it any more
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(5.0)
        self._listener.close()
        with self._lock:
            for client in self._clients.values():
                if client.lock.acquire(timeout=2.0):
                    client.leave()
        self._served.handle.leave()
