"""A learner's processes: a check that all are alive, and what they decide together.

All connect to process 0, which receives a line of JSON from each before an update, and answers all
with one. XLA's own connections carry the gradients, but wait forever for a process that is gone;
these connections end with their process, because the kernel watches them.

A process that leaves says so first: "bye" at the regular end, "failed" otherwise. The first process
that failed, or ended without a word, is reported to all others as the cause.
"""

import collections
import contextlib
import errno
import json
import math
import selectors
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, NoReturn

import jax
import numpy as np
from jax.experimental import multihost_utils

from distrl.errors import ConfigError, DeadlineExceeded, Diverged, PeerError, Stopped
from distrl.learner_group import rendezvous
from distrl.learner_group.group import Agreement
from distrl.learner_group.rendezvous import MAX_LINE, RENDEZVOUS_S, send
from distrl.runtime.process_exit import announce, exit_at_once
from distrl.runtime.sockets import joined_address, parse_address
from distrl.types import Nest

ROUND_S = 900.0  # for all processes to reach their next update: some may compile or evaluate
_CAUSE_S = 2.0  # an error waits this long for news that another process's end caused it
# A lost connection waits this long for a "failed" from another process. Less than `_CAUSE_S`:
# a process that fails because of the lost one does not say so before that.
_GRACE_S = 0.3
_LINGER_S = 1.0  # a closed group still reads this long, so that others get its last message
_STUCK_S = 10.0  # the time that the main thread has to notice a lost process by itself
_POLL_S = 0.1


class ProcessGroup:
    """The `LearnerGroup` of several processes: this process's connections to the others.

    An error that leaves its `with` block because another process has ended becomes a PeerError that
    names the process.

    Attributes:
      index: index of this process.
      count: number of processes.
      port: a free port of process 0's host, for JAX's own service.
    """

    def __init__(
        self,
        address: str,
        count: int,
        index: int,
        must_match: Mapping[str, str],
        *,
        on_stuck: Callable[[str], None] | None = None,
        timeout: float = RENDEZVOUS_S,
    ):
        """Connects to the other processes, which may start in any order.

        Args:
          address: "HOST:PORT", where process 0 listens.
          count: number of processes.
          index: index of this process, below `count`.
          must_match: settings that must be the same in all processes, by name.
          on_stuck: called in another thread, with what has happened, when a process has ended and
            the main thread does not notice because XLA waits for it.
          timeout: seconds for all processes to connect.

        Raises:
          ConfigError: the address is invalid, or a process belongs to another learner.
          DeadlineExceeded: not all processes connected in time.
        """
        self.index, self.count = index, count
        self._on_stuck = on_stuck or (lambda message: None)
        self._changed = threading.Condition()  # guards the attributes below
        self._cause: str | None = None  # the first process that was lost, and how
        self._left: set[int] = set()  # processes that have said bye
        self._proceed = True  # the last answer
        self._noticed = threading.Event()  # the main thread knows the cause, or is done
        self._closed_at: float | None = None  # when the last messages were sent
        peers = rendezvous.meet(address, count, index, must_match, timeout)
        self._sockets, self._names, self.port = peers
        self._messages: dict[int, collections.deque[dict[str, Any]]] = {
            peer: collections.deque() for peer in self._sockets
        }
        self._thread = threading.Thread(target=self._listen, name="learner-group", daemon=True)
        self._thread.start()

    def agree(self, proceed: bool, numbers: Sequence[int] = ()) -> Agreement:
        """See `LearnerGroup`."""
        vote = {"going": proceed, "numbers": list(map(int, numbers))}
        if self.index == 0:
            votes = [vote, *(self._receive(peer) for peer in sorted(self._sockets))]
            answer: dict[str, Any] = {
                "going": all(each["going"] for each in votes),
                "sums": [sum(column) for column in zip(*(each["numbers"] for each in votes))],
            }
            for peer in self._sockets:
                self._send(peer, answer)
        else:
            self._send(0, vote)
            answer = self._receive(0)
        self._proceed = answer["going"]
        return Agreement(answer["going"], answer["sums"])

    def broadcast(self, nest: Nest) -> Nest:
        """See `LearnerGroup`. Returns host arrays; needs JAX's own connections, see `join`."""
        local = jax.tree.map(np.asarray, nest)
        values = multihost_utils.broadcast_one_to_all(local)
        return jax.tree.map(lambda x, like: np.asarray(x).astype(like.dtype), values, local)

    def leave(self) -> None:
        """See `LearnerGroup`."""
        if self._proceed:
            self.agree(False)

    def close(self) -> None:
        """Says goodbye; afterwards the other processes may end, and this one may."""
        last = {"failed": True} if self._proceed else {"bye": True}
        with self._changed:
            self._noticed.set()
            for connection in self._sockets.values():
                with contextlib.suppress(OSError):  # the other process has ended already
                    send(connection, last)
                    connection.shutdown(socket.SHUT_WR)
            self._closed_at = time.monotonic()
        # The thread reads on until the others have closed too: closing a socket with unread data
        # resets the connection, and a reset may overtake the last message.
        self._thread.join(_LINGER_S + _POLL_S)

    def __enter__(self) -> "ProcessGroup":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        cause = None
        if error is not None and not isinstance(error, (PeerError, Stopped, ConfigError, Diverged)):
            with self._changed:
                self._changed.wait_for(lambda: self._cause is not None, _CAUSE_S)
                cause = self._cause
        self.close()
        if cause is not None:
            raise PeerError(cause) from error

    def _receive(self, peer: int) -> dict[str, Any]:
        """Returns another process's next message."""
        with self._changed:
            messages = self._messages[peer]
            self._changed.wait_for(lambda: messages or self._cause is not None, ROUND_S)
            if messages:
                return messages.popleft()
            self._noticed.set()
            if self._cause is not None:
                raise PeerError(self._cause)
        raise DeadlineExceeded(
            f"{self._names[peer]} did not reach its next update within {ROUND_S:g} s"
        )

    def _send(self, peer: int, message: dict[str, Any]) -> None:
        try:
            send(self._sockets[peer], message)
        except OSError as error:
            with self._changed:
                # Its last message, or news of another process, may still be unread.
                if not self._changed.wait_for(lambda: self._cause is not None, _CAUSE_S):
                    self._lose(peer, _how(error))
                self._noticed.set()
                raise PeerError(self._cause) from None

    def _listen(self) -> None:
        """Reads all connections and closes them in the end; runs in a thread."""
        buffers = dict.fromkeys(self._sockets, b"")
        ended: dict[int, tuple[str, float]] = {}  # connections that have ended: how, and when
        stuck_at = math.inf
        with contextlib.ExitStack() as opened:
            for connection in self._sockets.values():
                opened.enter_context(connection)
            selector = opened.enter_context(selectors.DefaultSelector())
            for peer, connection in self._sockets.items():
                selector.register(connection, selectors.EVENT_READ, peer)
            while self._closed_at is None or (
                selector.get_map() and time.monotonic() < self._closed_at + _LINGER_S
            ):
                for key, _ in selector.select(_POLL_S):
                    peer, connection = key.data, self._sockets[key.data]
                    data, how = _read(connection)
                    *lines, buffers[peer] = (buffers[peer] + data).split(b"\n")
                    for line in lines:
                        self._handle(peer, json.loads(line))
                    if how is not None:
                        selector.unregister(connection)
                        with contextlib.suppress(OSError):
                            connection.shutdown(socket.SHUT_WR)  # the other end reads no more
                        ended[peer] = how, time.monotonic()
                # Judged only after all that has arrived is read, on every connection.
                for peer, (how, since) in ended.items():
                    waited = not selector.get_map() or time.monotonic() > since + _GRACE_S
                    if waited and peer not in self._left and not self._noticed.is_set():
                        self._lose(peer, how)
                if self._cause is not None and stuck_at == math.inf:
                    stuck_at = time.monotonic() + _STUCK_S
                if time.monotonic() > stuck_at and not self._noticed.is_set():
                    self._noticed.set()
                    self._on_stuck(str(self._cause))

    def _handle(self, peer: int, message: dict[str, Any]) -> None:
        if "bye" in message:
            self._left.add(peer)
        elif "failed" in message:
            self._lose(peer, "has failed")
        elif "lost" in message:
            self._set_cause(peer, message["lost"])
        else:
            with self._changed:
                self._messages[peer].append(message)
                self._changed.notify_all()

    def _lose(self, peer: int, how: str) -> None:
        self._set_cause(peer, f"{self._names[peer]} {how}")

    def _set_cause(self, peer: int, cause: str) -> None:
        """Keeps the first cause. Process 0 forwards it to the others, except to `peer`."""
        with self._changed:
            if self._cause is not None:
                return
            self._cause = cause
            # At once: this process may fail because of it, and that would be the next message.
            for other, connection in self._sockets.items() if self.index == 0 else ():
                if other != peer:
                    with contextlib.suppress(OSError):  # it is gone too
                        send(connection, {"lost": cause})
            self._changed.notify_all()


def _read(connection: socket.socket) -> tuple[bytes, str | None]:
    """Returns data that has arrived, and how the connection ended; None: it has not."""
    try:
        data = connection.recv(MAX_LINE)
    except OSError as error:
        return b"", _how(error)
    return data, None if data else "has ended"


def _how(error: OSError) -> str:
    if error.errno in (errno.ECONNRESET, errno.EPIPE):  # the process has ended with data unread
        return "has ended"
    return f"cannot be reached: {error.strerror}"


def join(
    address: str,
    count: int,
    index: int,
    must_match: Mapping[str, str],
    on_stuck: Callable[[str], None] | None = None,
) -> ProcessGroup:
    """Makes this process one of a learner's processes: JAX then has the devices of all.

    Call it before anything uses JAX's devices.

    Args, Raises: see `ProcessGroup`.
    """
    must_match = {"jax": jax.__version__, **must_match}
    group = ProcessGroup(address, count, index, must_match, on_stuck=on_stuck)
    host, _ = parse_address(address, "coordinator_address")
    service = joined_address(host, group.port)
    if index > 0:
        service = f"127.0.0.1:{rendezvous.lasting_tunnel(host, group.port)}"
    on_sigterm = signal.getsignal(signal.SIGTERM)
    jax.distributed.initialize(
        service,
        count,
        index,
        coordinator_bind_address=service,
        cluster_detection_method="deactivate",
    )
    # On CPUs, XLA's collectives fail in an executable from JAX's cache on disk: it makes their
    # context a second time ("Config key cpu:gloo/... already exists").
    if jax.default_backend() == "cpu":
        jax.config.update("jax_enable_compilation_cache", False)
    if on_sigterm is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, on_sigterm)  # JAX has replaced it with one that does nothing
    return group


def end_process(message: str) -> NoReturn:
    """For `on_stuck`: ends the process, because nothing else can end XLA's wait."""
    sys.stderr.write(f"distrl: {message}, and XLA waits for it: this process ends\n")
    announce(reason=message, unsaid=True)
    exit_at_once(1)
