"""Numbered calls of a table's server, which survive the loss of a connection."""

import collections
import itertools
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from distrl import errors
from distrl.errors import DeadlineExceeded, PeerError, ServerSilent, Stopped
from distrl.frame_sockets import frames, greetings
from distrl.replay.served.calls import KEPT
from distrl.replay.table.waiting import wait_until
from distrl.runtime.messages import MessageError

_CONNECT_S = 5.0
_STOPPING_S = 5.0  # seconds that a call waits for a server once the program stops
_Result = TypeVar("_Result")
_ERRORS = ("Blocked", "ConfigError", "PeerError", "SpecError", "Stopped")


class Connection:
    """Calls, one after the other; a call that is sent again on another connection is made once."""

    def __init__(
        self,
        address: str,
        key: str,
        limit: int,
        stop: threading.Event | None,
        reconnect_timeout: float,
        name: str = "",
    ) -> None:
        """Args:
        address: the server's address, "unix:/path" or "host:port".
        key: the program's key.
        limit: largest number of bytes that may follow an answer.
        stop: set when the program stops; calls then wait no longer for a server that is gone.
        reconnect_timeout: seconds that a call waits for a server that is gone, or does not answer.
        name: the client's name, for messages.
        """
        self._address, self._limit, self._stop = address, limit, stop
        self._timeout = reconnect_timeout
        self._began = 0.0  # when the call in progress, or the wait for its answer, began
        # Messages and bytes of the calls that have begun and not finished. They are on their way if
        # there is a socket; otherwise they have to be sent again.
        self._calls: collections.deque[tuple[Any, Sequence[frames.Bytes]]] = collections.deque()
        self._error: OSError | None = None  # why there is no socket
        self._greeting = greetings.greeting(key, os.urandom(greetings.ID_BYTES), name)
        self._numbers = itertools.count()
        self._sock: frames.FrameSocket | None = None
        self._lock = threading.Lock()
        self._closed = False

    def call(
        self,
        name: str,
        *args: Any,
        data: Sequence[frames.Bytes] = (),
        timeout: float | None = None,
    ) -> tuple[tuple[Any, ...], frames.Bytes]:
        """Makes a call; returns its answer's message and bytes.

        Args:
          name: a method of the server's `Calls`.
          *args: its arguments.
          data: pieces of what follows the message.
          timeout: seconds, instead of `reconnect_timeout`.

        Raises:
          Stopped: the program stops, or this was closed.
          ServerSilent: the server was not there, or did not answer.
          PeerError: the server failed, or did not send an answer.
          Also what the server raised.
        """
        with self._lock:
            assert not self._calls, "the calls before are not finished"
            silent = self._deadline(timeout)
            self._begin(name, args, data, silent)
            return self._finish(silent)

    def begin(
        self, name: str, *args: Any, data: Sequence[frames.Bytes] = (), early: bool = True
    ) -> None:
        """As `call`, but does not wait for the answer: `finish` does, before `call` is used again.

        At most `calls.KEPT` may be begun. Errors of the connection are raised when they are
        finished. `data` must not change until then. Args: early: as for `FrameSocket.send`.
        """
        with self._lock:
            self._begin(name, args, data, self._deadline(), early)

    def finish(self) -> tuple[tuple[Any, ...], frames.Bytes]:
        """Returns the answer to the first begun call, which it finishes. Raises as `call`."""
        with self._lock:
            return self._finish(self._deadline())

    def _deadline(self, timeout: float | None = None) -> float:
        """Begins a wait for the server; returns the time when it ends."""
        self._began = time.monotonic()
        return self._began + (self._timeout if timeout is None else timeout)

    def _begin(
        self,
        name: str,
        args: tuple[Any, ...],
        data: Sequence[frames.Bytes],
        silent: float,
        early: bool = True,
    ) -> None:
        assert len(self._calls) < KEPT, "too many calls are not finished"
        message = (next(self._numbers), name, args)
        if self._sock is not None or not self._calls:
            _, self._error = self._tried(lambda: self._send(message, data, silent, early))
        self._calls.append((message, data))

    def _finish(self, silent: float) -> tuple[tuple[Any, ...], frames.Bytes]:
        name, answer = self._calls[0][0][1], None
        try:
            if self._sock is not None:
                answer, self._error = self._tried(lambda: self._receive(silent))
            if answer is None:
                answer = self._retried(name, silent)
        finally:
            self._calls.popleft()
        match answer[0]:
            case ("error", str(kind), str(text)):
                raise getattr(errors, kind if kind in _ERRORS else "PeerError")(text)
            case ("ok", _) | ("wait", int(_), str(_)):
                return answer
        raise self.no_answer(name, "it is neither a result nor an error")

    def no_answer(self, name: str, why: object) -> PeerError:
        """Returns the error for what is no answer of a server. Args: name: the call's name."""
        return PeerError(f"the table's server at {self._address} did not answer {name}: {why}")

    def _retried(self, name: str, silent: float) -> tuple[Any, frames.Bytes]:
        """Sends the calls again until the first one, of this name, is answered."""
        answers: list[tuple[Any, frames.Bytes]] = []

        def again() -> tuple[Any, frames.Bytes]:
            for message, data in self._calls:
                self._send(message, data, silent)
            return self._receive(silent)

        def answered() -> bool:
            answer, self._error = self._tried(again)
            if answer is not None:
                answers.append(answer)
            return bool(answers)

        def said() -> str:
            return f"{name} of the table at {self._address}: no server: {self._error}"

        with (changed := threading.Condition()):
            try:
                wait_until(
                    changed,
                    answered,
                    stop=None,  # `_poll` raises once the program stops
                    timeout=max(0.1, silent - time.monotonic()),
                    what=said,
                    poll=lambda: self._poll(silent),
                )
            except DeadlineExceeded as failure:
                raise ServerSilent(str(failure)) from None
        return answers[0]

    def _tried(self, step: Callable[[], _Result]) -> tuple[_Result | None, OSError | None]:
        """Returns what a step of a call returns, or why the connection was lost."""
        try:
            return step(), None
        except ServerSilent:
            raise
        except MessageError as error:
            self._hang_up()
            raise PeerError(f"the table at {self._address}: {error}") from None
        except OSError as error:
            self._hang_up()
            return None, error

    def _send(
        self, message: Any, data: Sequence[frames.Bytes], silent: float, early: bool = True
    ) -> None:
        self._connected().send(message, data, lambda: self._poll(silent), early)

    def _receive(self, silent: float) -> tuple[Any, frames.Bytes]:
        return self._connected().receive(self._limit, lambda: self._poll(silent))

    def _connected(self) -> frames.FrameSocket:
        if self._sock is None:
            if self._closed:
                raise Stopped(f"this client of the table at {self._address} is closed")
            self._sock = frames.connect(self._address, self._greeting, _CONNECT_S)
        return self._sock

    def _poll(self, silent: float) -> None:
        """Ends a wait for the server: raises what `call` does."""
        now = time.monotonic()
        stopping = self._stop is not None and self._stop.is_set()
        if self._closed or (stopping and now > self._began + _STOPPING_S):
            self._hang_up()
            raise Stopped(f"a call of the table at {self._address}")
        if now > silent:
            self._hang_up()
            raise ServerSilent(f"the table's server at {self._address} does not answer")

    def _hang_up(self) -> None:
        sock, self._sock = self._sock, None
        if sock is not None:
            sock.close()

    def close(self) -> None:
        """Ends a call in progress, and the connection."""
        self._closed = True
        with self._lock:
            self._hang_up()
