"""An inference server at a socket, for actors on other machines, and its client."""

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from distrl.errors import DeadlineExceeded, PeerError, SpecError, Stopped
from distrl.frame_sockets import frames
from distrl.frame_sockets.listener import FrameListener
from distrl.inference.messages import HEADER, InferenceMessages
from distrl.inference.server import InferenceServer
from distrl.runtime.messages import MessageError

_CONNECT_S = 5.0
_RETRY_S = 0.05  # between two attempts to connect
_STOPPING_S = 5.0  # that a call waits for a server once the program stops
_TEXT_LIMIT = 10_000  # characters of an error

_LOG = logging.getLogger(__name__)

_Frame = tuple[tuple[Any, ...], Sequence[frames.Bytes]]


class FrameInferenceServer:
    """Serves an `InferenceServer` until it is closed; each client has a thread."""

    def __init__(
        self,
        server: InferenceServer,
        messages: InferenceMessages,
        rows: int,
        address: str,
        key: str,
    ) -> None:
        """Args:
        server: answers the requests.
        messages: the layout of requests and answers.
        rows: most rows of a request.
        address: "unix:/path" or "host:port", of this machine.
        key: the program's; a client must have it.

        Raises:
          OSError: the address is taken.
        """
        self._server = server
        self._limit = HEADER.size + rows * messages.request.row_bytes
        self._listener = FrameListener(address, key, "the inferencer")
        self._listener.start(self._serve)

    def _serve(self, connection: frames.FrameSocket, identity: bytes, name: str) -> None:
        """Serves a client's connection until either end closes it."""
        del identity, name
        check_open = self._listener.check_open
        while True:
            message, data = connection.receive(self._limit, check_open)
            connection.send(*self._answer(message, data), poll=check_open)

    def _answer(self, message: Any, data: frames.Bytes) -> _Frame:
        """Returns the frame that answers another one.

        Raises:
          MessageError: that is no request.
        """
        try:
            match message:
                case ("inference",):
                    answer = self._server.inference(data.data)
                    return ("ok",), [np.frombuffer(answer, np.uint8)]
                case ("ask", int(version)):
                    self._server.ask(version)
                    return ("ok",), ()
        except Exception as error:
            if not isinstance(error, (DeadlineExceeded, SpecError)):
                _LOG.exception("a request to the inferencer failed")
            return ("error", f"{type(error).__name__}: {error}"[:_TEXT_LIMIT]), ()
        raise MessageError("a frame is no request")

    def close(self) -> None:
        """Ends all connections."""
        self._listener.close()


class FrameInferenceClient:
    """A client of a `FrameInferenceServer`, with the methods of its `InferenceServer`.

    A call whose connection is lost fails: it may have been made. The next one connects again.
    """

    def __init__(
        self,
        messages: InferenceMessages,
        rows: int,
        address: str,
        key: str,
        timeout: float,
        stop: threading.Event,
    ) -> None:
        """Args:
        messages: the layout of requests and answers.
        rows: most rows of a request.
        address: the server's, "unix:/path" or "host:port".
        key: the program's.
        timeout: seconds that a call waits for its answer, and for a server if there is none yet.
        stop: set when the program stops.
        """
        self._limit = HEADER.size + rows * (messages.answer.row_bytes + messages.state.row_bytes)
        self._address, self._timeout, self._stop = address, timeout, stop
        self._greeting = frames.greeting(key, os.urandom(frames.ID_BYTES), "")
        self._sock: frames.FrameSocket | None = None
        self._lock = threading.Lock()

    def inference(self, data: bytes) -> bytes:
        """See `InferenceServer.inference`. Raises as `ask`."""
        return self._call(("inference",), [np.frombuffer(data, np.uint8)]).tobytes()

    def ask(self, version: int) -> None:
        """See `Inferencer.ask`.

        Raises:
          Stopped: the program stops.
          DeadlineExceeded: the server was not there, or did not answer.
          PeerError: the server failed, or the connection was lost.
        """
        self._call(("ask", version), ())

    def _call(self, message: tuple[Any, ...], data: Sequence[frames.Bytes]) -> frames.Bytes:
        with self._lock:
            poll, answered = self._deadline(), False
            try:
                sock = self._connected(poll)
                sock.send(message, data, poll)
                answer, result = sock.receive(self._limit, poll)
                answered = True
            except DeadlineExceeded:  # an OSError, too
                raise
            except (OSError, MessageError) as error:
                raise PeerError(f"the inferencer at {self._address}: {error}") from None
            finally:
                if not answered:  # an answer may still come
                    self._hang_up()
        match answer:
            case ("ok",):
                return result
            case ("error", str(text)):
                raise PeerError(text)
        raise PeerError(f"the inferencer at {self._address} answered what is no answer")

    def _deadline(self) -> Callable[[], None]:
        """Begins a call; returns what raises when it may wait no longer."""
        began, limit = time.monotonic(), self._timeout

        def poll() -> None:
            waited = time.monotonic() - began
            if self._stop.is_set() and waited > _STOPPING_S:
                raise Stopped(f"a call of the inferencer at {self._address}")
            if waited > limit:
                raise DeadlineExceeded(
                    f"the inferencer at {self._address} has not answered in {limit:g} s"
                )

        return poll

    def _connected(self, poll: Callable[[], None]) -> frames.FrameSocket:
        while self._sock is None:
            try:
                self._sock = frames.connect(self._address, self._greeting, _CONNECT_S)
            except OSError:  # no server yet, or not again
                poll()
                time.sleep(_RETRY_S)
        return self._sock

    def _hang_up(self) -> None:
        sock, self._sock = self._sock, None
        if sock is not None:
            sock.close()

    def close(self) -> None:
        """Ends the connection, when the call in progress has ended."""
        with self._lock:
            self._hang_up()
