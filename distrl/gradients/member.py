"""A gradient worker as its learner sees it: whether it is ready, and the share it computes."""

import statistics
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol

import numpy.typing as npt

from distrl.gradients.messages import unpack
from distrl.gradients.service import NONE

_RETRY_S = 0.5  # between two attempts to reach a worker that is not ready
_LATE, _LATE_AT_LEAST_S = 5, 1.0  # a share is late after this many usual times, and seconds
_MOST_SAT_OUT = 1024  # most updates without a share for a late worker


class WorkerConnection(Protocol):
    """The means by which a learner calls a gradient worker; see `GradientService`."""

    name: str

    def prepare(self, request: bytes) -> "Future[bytes]":
        """Calls `GradientService.prepare`."""

    def compute(self, request: bytes) -> "Future[bytes]":
        """Calls `GradientService.compute`."""

    @property
    def life(self) -> int | None:
        """The worker's life; None while it does not run."""


class LostError(Exception):
    """A worker does not deliver its share; the message is the reason.

    Attributes:
      late: it may still deliver the share, too late.
    """

    def __init__(self, reason: str, late: bool = False):
        super().__init__(reason)
        self.late = late


class WorkerAssignment(NamedTuple):
    """A share that a worker computes."""

    future: Any
    number: int  # number of the update; NONE: its answer is not waited for
    share: int  # index of the share
    began: float


class Member:
    """A worker, as its learner knows it.

    Attributes:
      index: the worker's index in the program.
      connection: the connection to it.
      sizes: the sizes of shares that it has compiled: empty while it is not ready.
      preparing: the answer to the last request to get ready; None: none is outstanding.
      shared: whether it reads and writes the learner's memory.
      number: the number of the inputs that it has.
      assignment: what it computes; None: it has nothing to do.
    """

    def __init__(self, index: int, connection: WorkerConnection):
        self.index, self.connection = index, connection
        self.sizes: frozenset[int] = frozenset()
        self.preparing: Any = None
        self.shared = False
        self.number = NONE
        self.assignment: WorkerAssignment | None = None
        self._asked: frozenset[int] = frozenset()
        self._ask_at = 0.0
        self._life: int | None = None
        self._late = 0  # late shares in a row
        self._back_at = 0  # update at which it gets shares again

    def _forget(self) -> None:
        """Begins again with a worker that knows nothing."""
        self.sizes, self._asked, self.preparing = frozenset(), frozenset(), None
        self.number, self.assignment, self._ask_at = NONE, None, 0.0

    def look(self, number: int) -> None:
        """Records what became of its last share. Args: number: number of the last update."""
        assignment = self.assignment
        if assignment is not None and assignment.future.done():  # was late
            self.assignment, self.number = None, NONE
            self._back_at = number + min(2**self._late, _MOST_SAT_OUT)
        life = self.connection.life
        if self._life is not None and life != self._life:
            self._forget()
        self._life = life

    def get_ready(self, sizes: frozenset[int], request: bytes, ask: bool = True) -> str | None:
        """Takes the answer of a worker that gets ready, or asks it to. Never waits.

        Args:
          sizes: the sizes of shares to get ready for.
          request: the request for `GradientService.prepare`.
          ask: whether it may be asked now: it computes no share until it is ready.

        Returns:
          What is wrong, if anything is. It is asked again.
        """
        now, problem = time.monotonic(), None
        if self.preparing is not None and self.preparing.done():
            answer, self.preparing = self.preparing, None
            try:
                header, _ = unpack(answer.result())
            except Exception as error:  # from the call, or from the worker
                problem = f"{self.connection.name} is not ready: {error!r:.300}"
                self._ask_at = now + _RETRY_S
            else:
                if header["ready"]:
                    self.sizes |= self._asked
                    self.shared = header["shared"]
        idle = self.preparing is None and self._life is not None and now >= self._ask_at
        if ask and idle and not sizes <= self.sizes:
            self._asked = sizes
            self.preparing = self.connection.prepare(request)
        return problem

    def can_take(self, sizes: frozenset[int], number: int) -> bool:
        """Returns whether it may compute a share of any of these sizes in this update."""
        if self.assignment is not None or self.preparing is not None:
            return False
        return sizes <= self.sizes and number >= self._back_at

    def assign(self, request: bytes, number: int, share: int) -> None:
        """Asks it to compute a share. Args: request: the one for `GradientService.compute`."""
        future = self.connection.compute(request)
        self.assignment = WorkerAssignment(future, number, share, time.monotonic())

    def outcome(self, deadline: float) -> tuple[npt.NDArray[Any], float] | None:
        """Returns the answer's block, and how long it took; None: not yet there.

        Args: deadline: seconds after which the share is late.

        Raises:
          LostError: it died, failed, or is late.
        """
        assignment = self.assignment
        assert assignment is not None
        seconds = time.monotonic() - assignment.began
        if not assignment.future.done():
            if self.connection.life != self._life:
                self._forget()
                raise LostError("has ended")
            if seconds > deadline:
                self._late += 1
                self.number = NONE  # it may read inputs while they are written
                self.assignment = assignment._replace(number=NONE)
                raise LostError(f"has not answered within {seconds:.1f} s", late=True)
            return None
        self.assignment = None
        try:
            header, block = unpack(assignment.future.result())
        except Exception as error:  # from the call, or from the worker
            self._forget()
            raise LostError(f"failed: {error!r:.300}") from error
        if not header["known"]:
            self._forget()
            raise LostError("has restarted")
        self.number, self._late = assignment.number, 0
        return block, seconds


def deadline(seconds: Sequence[float], limit: float) -> float:
    """Returns the seconds after which a share is late.

    Args:
      seconds: how long recent shares took.
      limit: the most seconds that a share may take.
    """
    if not seconds:
        return limit
    return min(limit, max(_LATE_AT_LEAST_S, _LATE * statistics.median(seconds)))
