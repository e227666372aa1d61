"""The interface of a group of processes that form one learner, and a group of one process."""

from collections.abc import Sequence
from types import TracebackType
from typing import NamedTuple, Protocol

from distrl.types import Nest


class Agreement(NamedTuple):
    """The joint decision of a learner's processes before an update."""

    proceed: bool  # every process makes this update
    sums: list[int]  # each number, summed over the processes; meaningless unless `proceed`


class LearnerGroup(Protocol):
    """A learner's processes, as one of them sees the group. Enter it: it is closed at the end."""

    index: int  # index of this process
    count: int  # number of processes

    def agree(self, proceed: bool, numbers: Sequence[int] = ()) -> Agreement:
        """Waits for all processes before an update. Each calls it equally often.

        After an answer without `proceed` no process calls it again.

        Args:
          proceed: whether this process makes the update.
          numbers: what this process counted; equally many in each process.

        Raises:
          PeerError: a process has ended or failed.
          DeadlineExceeded: a process did not reach its next update.
        """

    def broadcast(self, nest: Nest) -> Nest:
        """Returns process 0's values. All processes call it, with nests of one structure."""

    def leave(self) -> None:
        """Ends the updates of all processes, unless they have ended already.

        Raises: see `agree`.
        """

    def __enter__(self) -> "LearnerGroup": ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class SingleProcessGroup:
    """The group of a learner with one process, which always agrees with itself."""

    index = 0
    count = 1

    def agree(self, proceed: bool, numbers: Sequence[int] = ()) -> Agreement:
        """See `LearnerGroup`."""
        return Agreement(proceed, list(numbers))

    def broadcast(self, nest: Nest) -> Nest:
        """See `LearnerGroup`."""
        return nest

    def leave(self) -> None:
        """See `LearnerGroup`."""

    def __enter__(self) -> "SingleProcessGroup":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Does nothing: there is nothing to close."""
