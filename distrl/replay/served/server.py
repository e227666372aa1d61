"""Serves a table in shared memory to clients on other machines.

A client's calls are numbered. The server keeps the answer to a client's last call, so that a call
that is sent again, on another connection, is made once: an insert inserts once, and a batch taken
from a queue is not lost with a connection.
"""

import contextlib
import hmac
import logging
import math
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from distrl.errors import Blocked, ConfigError, DeadlineExceeded, SpecError, Stopped
from distrl.replay.buffer import checked_priorities
from distrl.replay.columns import Block
from distrl.replay.config import ReplayConfig
from distrl.replay.served import frames
from distrl.replay.shared.handle import TableHandle
from distrl.replay.shared.slots import RingSlots
from distrl.replay.shared.table import SharedTable
from distrl.runtime.messages import MessageError
from distrl.types import Trajectory

CHUNK_BYTES = 64 << 20  # of unrolls in a frame, unless one is larger
SLICE = 0.25  # seconds that a call waits at the server, before the client asks again
_GREETING_S = 2.0  # for the proof of the key
_STRANGERS = 64  # connections at a time that have not shown the key
_RETRY_S = 1.0
_KEPT_S = 600.0  # that a client without connection is remembered

_LOG = logging.getLogger(__name__)


class Answer(NamedTuple):
    """What a call returned."""

    message: tuple[Any, ...]  # ("ok", result), ("wait", done, text) or ("error", type, text)
    data: frames.Bytes = frames.NOTHING


class _Client:
    """A client's handle, its last call and the answer."""

    def __init__(self, handle: TableHandle) -> None:
        self.handle = handle
        self.lock = threading.Lock()  # held during a call
        self.number = -1
        self.answer = Answer(("ok", None))
        self.sampled = frames.Room()
        self.seen = time.monotonic()


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
    ) -> None:
        """Args:
        table: the table, which stays the caller's.
        struct: one stream at one step.
        config: the table's settings.
        address: "unix:/path" or "host:port", of this machine.
        key: the program's; a client must have it.
        folder: clients have the table saved in folders below it; None: nowhere.

        Raises:
          OSError: the address is taken.
        """
        self._table, self._struct, self._config = table, struct, config
        self._proof = frames.proof(key)
        self._folder = folder
        self._listener = frames.listen(address)
        self._stop = threading.Event()
        self._clients: dict[bytes, _Client] = {}
        self._lock = threading.Lock()
        self._strangers = threading.BoundedSemaphore(_STRANGERS)
        self._handle = TableHandle(table, struct, config.sampler)
        self._limit = self._handle.columns.nbytes(chunk(self._handle.columns.nbytes(1)))
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
        with self._lock:
            for name, client in list(self._clients.items()):
                if time.monotonic() - client.seen > _KEPT_S and client.lock.acquire(blocking=False):
                    del self._clients[name]
                    client.handle.leave()

    def _serve(self, sock: socket.socket) -> None:
        """Serves a connection until either end closes it."""
        with sock:
            try:
                client = self._greeted(sock)
            finally:
                self._strangers.release()
            if client is None:
                return
            frames.tune(sock)
            room = frames.Room()
            try:
                while True:
                    message, data = frames.receive(sock, self._limit, self._poll(client), room)
                    frames.send(sock, *self._answer(client, message, data))
            except (OSError, Stopped):
                return  # the client is gone, or this closes
            except MessageError as error:
                _LOG.warning("a client of the table was cut off: %s", error)

    def _poll(self, client: _Client) -> Callable[[], None]:
        def poll() -> None:
            client.seen = time.monotonic()
            if self._stop.is_set():
                raise Stopped("the table's server closes")

        return poll

    def _greeted(self, sock: socket.socket) -> _Client | None:
        """Returns the client of a new connection; None: it has not the key."""
        greeting = bytearray(len(self._proof) + frames.ID_BYTES)
        try:
            frames.receive_into(sock, memoryview(greeting), None, total=_GREETING_S)
        except OSError:
            return None
        if not hmac.compare_digest(bytes(greeting[: -frames.ID_BYTES]), self._proof):
            return None
        name = bytes(greeting[-frames.ID_BYTES :])
        with self._lock:
            if name not in self._clients:
                handle = TableHandle(self._table, self._struct, self._config.sampler)
                self._clients[name] = _Client(handle)
            return self._clients[name]

    def _answer(self, client: _Client, message: Any, data: frames.Bytes) -> Answer:
        """Returns the answer to a call, which is made unless it was already.

        Raises:
          MessageError: it is no call.
          ConnectionError: the client has this answer: it has made a later call, elsewhere.
        """
        match message:
            case (int(number), str(name), tuple(args)):
                call = getattr(_Calls, name, None) if not name.startswith("_") else None
            case _:
                call = None
        if call is None:
            raise MessageError("a frame is no call")
        with client.lock:
            if number < client.number:  # it lay in a connection that the client has given up
                raise ConnectionError("the client has gone on, on another connection")
            if number > client.number:
                client.answer = self._made(lambda: call(self._calls(client), data, *args))
                client.number = number
            return client.answer

    def _calls(self, client: _Client) -> "_Calls":
        return _Calls(client, self._table, self._config, self._stop, self._folder)

    def _made(self, call: Callable[[], Answer]) -> Answer:
        try:
            return call()
        except (Blocked, ConfigError, SpecError, Stopped) as error:
            return Answer(("error", type(error).__name__, str(error)))
        except Exception as error:
            _LOG.exception("a call of a client of the table failed")
            return Answer(("error", "PeerError", f"{type(error).__name__}: {error}"))

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
                    client.handle.leave()
        self._handle.leave()


class _Calls:
    """The calls that a client can make: each gets the frame's bytes first."""

    def __init__(
        self,
        client: _Client,
        table: SharedTable,
        config: ReplayConfig,
        stop: threading.Event,
        folder: Path | None,
    ) -> None:
        self._handle, self._sampled = client.handle, client.sampled
        self._table, self._config, self._stop, self._folder = table, config, stop, folder

    def insert(self, data: frames.Bytes, size: int, priorities: Any, wait: float) -> Answer:
        if not 0 < size <= data.nbytes:
            raise SpecError(f"an insert of {size} unrolls in {data.nbytes} bytes")
        if priorities is not None and np.shape(priorities) != (size,):
            raise SpecError(f"priorities {np.shape(priorities)} of {size} unrolls")
        block = self._handle.columns.unpack(data, size)._replace(priorities=priorities)
        before = self._handle.inserted
        try:
            self._handle.insert(block, self._stop, min(wait, SLICE))
        except DeadlineExceeded:
            return Answer(("wait", self._handle.inserted - before, self._described()))
        return Answer(("ok", None))

    def _described(self) -> str:
        with self._table.lock:
            return self._table.describe()

    def prefill(self, data: frames.Bytes, size: int, priorities: Any) -> Answer:
        block: Block = self._handle.columns.unpack(data, size)._replace(priorities=priorities)
        self._handle.prefill(block)
        return Answer(("ok", None))

    def sample(self, data: frames.Bytes, wait: float) -> Answer:
        try:
            nbytes = self._handle.columns.nbytes(self._table.batch_size)
            # The batch before, which is in this memory, has arrived: there is another call.
            batch = self._handle.sample_block(
                self._stop, min(wait, SLICE), self._sampled.take(nbytes)
            )
        except DeadlineExceeded:
            return Answer(("wait", 0, self._described()))
        store = self._table.store
        with self._table.lock:
            size, mass = store.size, store.ring.mass if isinstance(store, RingSlots) else 0.0
        facts = (batch.keys, batch.probability, batch.inserts, size, mass)
        return Answer(("ok", facts), self._handle.columns.pack(batch.block))

    def update_priorities(
        self, data: frames.Bytes, keys: Any, priorities: Any, largest: float
    ) -> Answer:
        keys, priorities = checked_priorities(keys, priorities)
        if not (math.isfinite(largest) and largest >= 0):
            raise SpecError(f"a largest priority of {largest}")
        self._handle.update_priorities(keys, priorities, largest)
        return Answer(("ok", None))

    def discard(self, data: frames.Bytes, keys: Any, oldest: int) -> Answer:
        self._handle.discard(np.asarray(keys, np.uint64), int(oldest))
        return Answer(("ok", None))

    def facts(self, data: frames.Bytes) -> Answer:
        handle = self._handle
        return Answer(("ok", (handle.info(), handle.can_sample(), handle.is_prioritized)))

    def reconfigure(self, data: frames.Bytes, changes: dict[str, Any]) -> Answer:
        return Answer(("ok", self._handle.reconfigure(**changes)))

    def read(self, data: frames.Bytes, start: int, stop: int) -> Answer:
        block = self._handle.read(slice(start, stop))
        return Answer(("ok", block.size), self._handle.columns.pack(block))

    def save(self, data: frames.Bytes, folder: str) -> Answer:
        path = Path(folder).resolve()
        if self._folder is None or not path.is_relative_to(self._folder.resolve()):
            raise ConfigError(f"{path}: the table's server saves it below {self._folder} only")
        return Answer(("ok", self._handle.save(self._config, path, 0.0)))

    def layout(self, data: frames.Bytes) -> Answer:
        config = self._table.config
        sizes = (config.table == "queue", config.unroll_length, self._table.batch_size)
        return Answer(("ok", (self._table.name, *sizes)))


def chunk(unroll_bytes: int) -> int:
    """Returns how many unrolls are sent in a frame at most."""
    return max(1, CHUNK_BYTES // unroll_bytes)
