"""Calls to a node by frames: each gets one answer, and a failed call may have been executed.

A call is a message, a tuple that begins with a name, and an array of bytes; so is its answer. A
client's first question on a connection is whether a server is there: a tunnel to another host
accepts connections to a server that does not listen yet, and closes them. No call has been sent
then, so the client can try another connection.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from distrl.errors import DeadlineExceeded, PeerError, Stopped
from distrl.frame_sockets import frames, greetings
from distrl.frame_sockets.listener import FrameListener
from distrl.runtime.messages import MessageError

_CONNECT_S = 5.0
_RETRY_S, _MOST_RETRY_S = 0.05, 0.5  # between two attempts to connect: at first, at most
_STOPPING_S = 5.0  # how long a call waits for its answer once the program stops
_TEXT_LIMIT = 10_000  # characters of an error's text
_IS_THERE, _THERE = ("is there",), ("there",)

_LOG = logging.getLogger(__name__)

Message = tuple[Any, ...]
Answer = tuple[Message, Sequence[frames.Bytes]]


class FrameCallServer:
    """Answers calls until it is closed; each client has a thread."""

    def __init__(
        self,
        answer: Callable[[Any, frames.Bytes], Answer | None],
        limit: int,
        address: str,
        key: str,
        what: str,
        expected: tuple[type[Exception], ...] = (),
    ) -> None:
        """Args:
        answer: returns a call's answer, whose first word is not "error"; None: it is not a call,
          and the client is disconnected. What it raises is passed to the client as the answer.
        limit: bytes of a call's array.
        address: "unix:/path" or "host:port", of this machine.
        key: the program's key, which a client must have.
        what: name of what is served, for messages.
        expected: exceptions of `answer` that are not logged here.

        Raises:
          OSError: the address is taken.
        """
        self._answer, self._limit, self._what = answer, limit, what
        self._expected = expected
        self._listener = FrameListener(address, key, what)
        self._listener.start(self._serve)

    def _serve(self, connection: frames.FrameSocket, identity: bytes, name: str) -> None:
        """Serves a client's connection until either end closes it."""
        del identity, name
        check_open = self._listener.check_open
        while True:
            message, data = connection.receive(self._limit, check_open)
            try:
                answer = self._answer(message, data)
            except Exception as error:
                if not isinstance(error, self._expected):
                    _LOG.exception("a call of %s failed", self._what)
                answer = ("error", f"{type(error).__name__}: {error}"[:_TEXT_LIMIT]), ()
            if answer is None and message == _IS_THERE:
                answer = _THERE, ()
            if answer is None:
                raise MessageError("a frame is not a call")
            connection.send(*answer, poll=check_open)

    def close(self) -> None:
        """Ends all connections."""
        self._listener.close()


class FrameCallClient:
    """A client of a `FrameCallServer`, which makes one call after another.

    After a lost connection, the next call connects again. Each call is sent once at most.
    """

    def __init__(
        self, what: str, limit: int, address: str, key: str, timeout: float, stop: threading.Event
    ) -> None:
        """Args:
        what: name of what is served, for messages.
        limit: bytes of an answer's array.
        address: the server's address, "unix:/path" or "host:port".
        key: the program's key.
        timeout: seconds that a call waits for its answer, and for a server if there is none yet.
        stop: set when the program stops.
        """
        self._what, self._limit, self._address = f"{what} at {address}", limit, address
        self._timeout, self._stop = timeout, stop
        self._greeting = greetings.greeting(key, os.urandom(greetings.ID_BYTES), "")
        self._sock: frames.FrameSocket | None = None
        self._failure = ""  # why the last attempt to connect failed, for messages
        self._lock = threading.Lock()

    def call(
        self, message: Message, data: Sequence[frames.Bytes] = ()
    ) -> tuple[Message, frames.Bytes]:
        """Makes a call; returns its answer.

        Raises:
          Stopped: the program stops.
          DeadlineExceeded: the server was not there, or did not answer.
          PeerError: the server failed, or the connection was lost after the call was sent.
        """
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
                raise PeerError(f"{self._what}: {error}") from None
            finally:
                if not answered:  # an answer may still come
                    self._hang_up()
        match answer:
            case ("error", str(text)):
                raise PeerError(text)
            case (str(), *_):
                return answer, result
        raise self.no_answer()

    def no_answer(self) -> PeerError:
        """Returns the error for an answer that is not one."""
        return PeerError(f"{self._what} sent what is not an answer")

    def _deadline(self) -> Callable[[], None]:
        """Begins a call; returns a function that raises when the call may wait no longer."""
        began, limit = time.monotonic(), self._timeout
        self._failure = ""

        def poll() -> None:
            waited = time.monotonic() - began
            if self._stop.is_set() and waited > _STOPPING_S:
                raise Stopped(f"a call of {self._what}")
            if waited > limit:
                raise DeadlineExceeded(
                    f"{self._what} has not answered in {limit:g} s{self._failure}"
                )

        return poll

    def _connected(self, poll: Callable[[], None]) -> frames.FrameSocket:
        """Returns the connection; waits for a server, as long as `poll` does not raise.

        Raises:
          MessageError: the server at the address does not serve calls.
        """
        pause = _RETRY_S
        while self._sock is None:
            try:
                self._sock = frames.connect(self._address, self._greeting, _CONNECT_S)
                self._sock.send(_IS_THERE, (), poll)
                answer, _ = self._sock.receive(0, poll)
            except (DeadlineExceeded, Stopped):
                raise
            except OSError as error:  # no server: not yet, or not any more
                self._hang_up()
                if self._stop.is_set():  # the server will not be restarted
                    raise Stopped(f"a call of {self._what}") from None
                self._failure = f": no server: {error}"
                poll()
                time.sleep(pause)  # a tunnel makes a TLS handshake for each attempt
                pause = min(2 * pause, _MOST_RETRY_S)
                continue
            if answer != _THERE:
                raise MessageError("it sent what is not an answer")
            self._failure = ""
        return self._sock

    def _hang_up(self) -> None:
        sock, self._sock = self._sock, None
        if sock is not None:
            sock.close()

    def close(self) -> None:
        """Ends the connection, when the call in progress has ended."""
        with self._lock:
            self._hang_up()
