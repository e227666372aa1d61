"""The processes of one learner: whether all are there, and what they decide together.

They meet at process 0, which hears a line of JSON from each before an update, and answers all of
them with one. XLA's own connections carry the gradients, and wait for ever for a process that is
gone: these, which the kernel watches, end with it.
"""

import collections
import contextlib
import errno
import json
import os
import selectors
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, NoReturn

import jax

from distrl.errors import ConfigError, DeadlineExceeded, PeerError, Stopped
from distrl.learner_group import rendezvous
from distrl.learner_group.rendezvous import MAX_LINE, MEET_S, send

ROUND_S = 900.0  # for all of them to get to their next update: some may compile, or evaluate
_NEWS_S = 1.0  # for the news that a process has ended to follow what its end has caused
_STUCK_S = 10.0  # that the main thread has to notice it by itself


class Agreement(NamedTuple):
    """What all processes have said before an update."""

    going: bool  # all go on
    sums: list[int]  # of what each counted


class LearnerGroup:
    """This process's connection to the others. Enter it: it is closed at the end.

    An error that leaves it because another process has ended becomes a PeerError with its name.

    Attributes:
      index: of this process.
      count: of the processes.
      port: at process 0, for JAX's own service.
    """

    def __init__(
        self,
        address: str,
        count: int,
        index: int,
        about: Mapping[str, str],
        *,
        on_stuck: Callable[[str], None] | None = None,
        timeout: float = MEET_S,
    ):
        """Meets the others, in whatever order they start.

        Args:
          address: "HOST:PORT", at which process 0 listens and the others find it.
          count: of the processes.
          index: of this process, below `count`.
          about: what must be the same for all, by name.
          on_stuck: called in another thread, with what has happened, where a process has ended and
            this one's main thread does not notice: XLA waits for it.
          timeout: seconds for all to come.

        Raises:
          ConfigError: an address that cannot be, or a process that is not of this learner.
          DeadlineExceeded: not all have come.
        """
        self.index, self.count = index, count
        self._on_stuck = on_stuck or (lambda message: None)
        self._changed = threading.Condition()
        self._lost: str | None = None
        self._noticed = threading.Event()
        self._left: set[int] = set()  # processes that have ended in order
        self._together = True
        found = rendezvous.meet(address, count, index, about, timeout)
        self._sockets, self._names, self.port = found
        self._said: dict[int, collections.deque[dict[str, Any]]] = {
            other: collections.deque() for other in self._sockets
        }
        self._thread = threading.Thread(target=self._listen, name="partners", daemon=True)
        self._thread.start()

    def agree(self, going: bool, numbers: Sequence[int] = ()) -> Agreement:
        """Says whether this process goes on, and hears whether all do. All call it equally often.

        After an answer that not all go on nobody calls it again.

        Args:
          going: whether it does.
          numbers: what it has counted; as many in each process.

        Raises:
          PeerError: a process has ended, or broken off.
          DeadlineExceeded: one has not come to its next update for long.
        """
        mine = {"going": going, "numbers": list(map(int, numbers))}
        if self.index == 0:
            said = [mine, *(self._next(other) for other in sorted(self._sockets))]
            answer: dict[str, Any] = {
                "going": all(each["going"] for each in said),
                "sums": [sum(column) for column in zip(*(each["numbers"] for each in said))],
            }
            for other in self._sockets:
                self._tell(other, answer)
        else:
            self._tell(0, mine)
            answer = self._next(0)
        self._together = answer["going"]
        return Agreement(answer["going"], answer["sums"])

    def leave(self, count: int) -> None:
        """Ends the learning of all, unless it has ended already. `count`: of numbers, for `agree`.

        Raises: as `agree`.
        """
        if self._together:
            self.agree(False, [0] * count)

    def close(self) -> None:
        """Says goodbye: from now on the others may end, and this process may."""
        with self._changed:
            self._noticed.set()
            for found in self._sockets.values():
                try:
                    send(found, {"bye": True} if not self._together else {"failed": True})
                    found.shutdown(socket.SHUT_RDWR)  # wakes the thread, which closes them
                except OSError:
                    continue  # it has ended before
        self._thread.join(_NEWS_S)

    def __enter__(self) -> "LearnerGroup":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        lost = None
        if error is not None and not isinstance(error, (PeerError, Stopped, ConfigError)):
            with self._changed:  # what the others' end has broken is heard of before it
                self._changed.wait_for(lambda: self._lost is not None, _NEWS_S)
                lost = self._lost
        self.close()
        if lost is not None:
            raise PeerError(lost) from error

    def _next(self, other: int) -> dict[str, Any]:
        """What another process says next."""
        with self._changed:
            said = self._said[other]
            heard = self._changed.wait_for(lambda: said or self._lost is not None, ROUND_S)
            if said:
                return said.popleft()
            self._noticed.set()
            if heard:
                raise PeerError(self._lost)
        raise DeadlineExceeded(
            f"{self._names[other]} has not come to its next update for {ROUND_S:g} s"
        )

    def _tell(self, other: int, message: dict[str, Any]) -> None:
        try:
            send(self._sockets[other], message)
        except OSError:
            self._lose(other, "has ended")
            self._noticed.set()
            raise PeerError(self._lost) from None

    def _listen(self) -> None:
        """The thread: hears all that is said, and closes the connections in the end."""
        rest = dict.fromkeys(self._sockets, b"")
        with contextlib.ExitStack() as opened:
            for found in self._sockets.values():
                opened.enter_context(found)
            selector = opened.enter_context(selectors.DefaultSelector())
            for other, found in self._sockets.items():
                selector.register(found, selectors.EVENT_READ, other)
            while selector.get_map():
                for key, _ in selector.select(1.0):
                    other, what = key.data, "has ended"
                    try:
                        data = key.fileobj.recv(MAX_LINE)  # type: ignore[union-attr]
                    except OSError as error:
                        data = b""
                        if error.errno != errno.ECONNRESET:
                            what = f"cannot be reached: {error.strerror}"
                    if not data:
                        selector.unregister(key.fileobj)
                        if other not in self._left and not self._noticed.is_set():
                            self._lose(other, what)
                        continue
                    *lines, rest[other] = (rest[other] + data).split(b"\n")
                    for line in lines:
                        self._hear(other, json.loads(line))
                if self._noticed.is_set():
                    return
                if self._lost is not None:
                    if not self._noticed.wait(_STUCK_S):
                        self._on_stuck(self._lost)
                    return

    def _hear(self, other: int, message: dict[str, Any]) -> None:
        if "bye" in message:
            self._left.add(other)
        elif "failed" in message:
            self._lose(other, "has failed")
        elif "lost" in message:
            self._lose(other, message["lost"], as_it_is=True)
        else:
            with self._changed:
                self._said[other].append(message)
                self._changed.notify_all()

    def _lose(self, other: int, what: str, as_it_is: bool = False) -> None:
        """Notes the first process that is gone; process 0 tells all others."""
        with self._changed:
            if self._lost is not None:
                return
            self._lost = what if as_it_is else f"{self._names[other]} {what}"
            # Before this process ends by it, which is the next that the others hear.
            for each, found in self._sockets.items() if self.index == 0 else ():
                try:
                    if each != other:
                        send(found, {"lost": self._lost})
                except OSError:
                    continue  # gone too
            self._changed.notify_all()


def join(
    address: str,
    count: int,
    index: int,
    about: Mapping[str, str],
    on_stuck: Callable[[str], None] | None = None,
) -> LearnerGroup:
    """Makes this process one of a learner's: from now on JAX has the devices of all of them.

    Before anything has used JAX's devices.

    Args, Raises: as of `LearnerGroup`.
    """
    about = {"jax": jax.__version__, **about}
    learner_group = LearnerGroup(address, count, index, about, on_stuck=on_stuck)
    host, _ = rendezvous.parse(address)
    service = f"{host}:{learner_group.port}"
    if index > 0:
        service = f"127.0.0.1:{rendezvous.lasting_tunnel(host, learner_group.port)}"
    on_sigterm = signal.getsignal(signal.SIGTERM)
    jax.distributed.initialize(
        service,
        count,
        index,
        coordinator_bind_address=service,
        cluster_detection_method="deactivate",
    )
    if on_sigterm is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, on_sigterm)  # JAX has taken it, and does nothing
    return learner_group


def end_process(message: str) -> NoReturn:
    """For `on_stuck`: XLA's wait cannot be ended in another way."""
    sys.stdout.flush()
    sys.stderr.write(f"distrl: {message}, and XLA waits for it: this process ends\n")
    sys.stderr.flush()
    os._exit(1)
