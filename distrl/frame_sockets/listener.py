"""Accepts connections from clients that have the program's key."""

import contextlib
import hmac
import logging
import socket
import threading
from collections.abc import Callable

from distrl.errors import Stopped
from distrl.frame_sockets import frames, greetings
from distrl.runtime.messages import MessageError

_GREETING_S = 2.0  # for a new connection to prove that it has the key
_UNAUTHENTICATED = 64  # most connections at a time that have not proved it
_RETRY_S = 1.0
_IDLE_S = 0.5  # between two calls of `idle`

_LOG = logging.getLogger(__name__)

Serve = Callable[[frames.FrameSocket, bytes, str], None]


class FrameListener:
    """Serves each connection in a thread, from `start` until it is closed.

    Attributes:
      stop: set when the listener closes.
    """

    def __init__(self, address: str, key: str, what: str) -> None:
        """Args:
        address: "unix:/path" or "host:port", of this machine.
        key: the program's key, which a client must have.
        what: name of what is served, for messages.

        Raises:
          OSError: the address is taken.
        """
        self._proof, self._what = greetings.proof(key), what
        self._listener = frames.listen(address)
        self.stop = threading.Event()
        self._unauthenticated = threading.BoundedSemaphore(_UNAUTHENTICATED)
        self._listener.settimeout(_IDLE_S)
        self._thread: threading.Thread | None = None

    def start(self, serve: Serve, idle: Callable[[], None] = lambda: None) -> None:
        """Begins to accept.

        Args:
          serve: takes a connection, its client's identity and name, and serves it until either end
            closes it. May raise OSError, MessageError or, from `check_open`, Stopped.
          idle: called now and then.
        """
        self._serve, self._idle = serve, idle
        name = f"serve {self._what}"
        self._thread = threading.Thread(target=self._accept, name=name, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while not self.stop.is_set():
            try:
                sock, _ = self._listener.accept()
            except TimeoutError:
                self._idle()
                continue
            except OSError as error:  # perhaps no descriptor is left
                if self.stop.is_set():
                    return
                self._refused(error)
                continue
            if not self._unauthenticated.acquire(blocking=False):
                sock.close()
                continue
            name = f"serve a client of {self._what}"
            thread = threading.Thread(target=self._greet, args=(sock,), name=name, daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # no thread is left
                sock.close()
                self._unauthenticated.release()
                self._refused(error)

    def _refused(self, error: Exception) -> None:
        """Logs why no client can connect now, and waits a moment."""
        _LOG.warning("no client of %s can connect: %s", self._what, error)
        self.stop.wait(_RETRY_S)

    def _greet(self, sock: socket.socket) -> None:
        with contextlib.closing(sock):
            try:
                client = self._greeted(sock)
            finally:
                self._unauthenticated.release()
            if client is None:
                return
            try:
                self._serve(*client)
            except (OSError, Stopped):
                return  # the client is gone, or the listener closes
            except MessageError as error:
                _LOG.warning("a client of %s was cut off: %s", self._what, error)

    def _greeted(self, sock: socket.socket) -> tuple[frames.FrameSocket, bytes, str] | None:
        """Returns a connection, its client's identity and name; None: the client lacks the key.

        Args:
          sock: a new connection's socket, which the caller closes.
        """
        greeting = bytearray(greetings.GREETING_BYTES)
        try:
            connection = frames.FrameSocket(sock)
            connection.receive_into(memoryview(greeting), None, total=_GREETING_S)
        except OSError:
            return None
        proof, identity, name = greetings.greeted(bytes(greeting))
        knows_key = hmac.compare_digest(proof, self._proof)
        return (connection, identity, name) if knows_key else None

    def check_open(self) -> None:
        """Raises Stopped if the listener is closed."""
        if self.stop.is_set():
            raise Stopped(f"the server of {self._what} closes")

    def close(self) -> None:
        """Stops accepting connections, and ends those that are being served."""
        if self.stop.is_set():
            return
        self.stop.set()
        with contextlib.suppress(OSError):  # no thread can wait in it any more
            self._listener.shutdown(socket.SHUT_RDWR)
        if self._thread is not None:
            self._thread.join(5.0)
        self._listener.close()
