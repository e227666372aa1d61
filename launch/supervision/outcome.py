"""Why a program ends: which of several failures, exits and stop requests came first."""

import dataclasses

from distrl.launch.supervision.node import Message
from distrl.launch.supervision.result import (
    EXIT_BAD_INPUT,
    EXIT_FAILED,
    EXIT_FINISHED,
    EXIT_HOST_LOST,
    NOT_STARTED,
    Failure,
    NodeExit,
)
from distrl.runtime.host_resources import killed_by, oom_kills

ENDED = "ended without being asked to"
JUDGE_DELAY_S = 0.2  # an exception may be the echo of a death elsewhere that is seen later


@dataclasses.dataclass(frozen=True)
class ProgramOutcome:
    """The program's outcome and its reason; see `Result` for the fields."""

    status: str
    reason: str
    exit_code: int
    failure: Failure | None = None

    @property
    def in_haste(self) -> bool:
        """Whether nodes that save nothing get little time: they may wait for one that failed."""
        return self.failure is not None and not self.failure.of_launcher

    @classmethod
    def failed(cls, failure: Failure, reason: str | None = None) -> "ProgramOutcome":
        """Returns the outcome of a program that a node's failure ends.

        Args:
          failure: the failure.
          reason: one line; the node and the cause by default.
        """
        reason = f"{failure.node} {failure.cause}" if reason is None else reason
        code = EXIT_BAD_INPUT if failure.bad_input else EXIT_FAILED
        code = EXIT_HOST_LOST if failure.host_lost else code
        return cls("failed", reason, code, failure)


ALL_RETURNED = ProgramOutcome("finished", "all nodes have returned", EXIT_FINISHED)


class Judge:
    """Collects what may end the program, and decides what came first.

    A stop request decides if it is the first message. Otherwise a silent death decides, and a
    node's exception only if no silent death is seen within `JUDGE_DELAY_S`.

    Attributes:
      due: when `outcome` can decide on an exception; infinite if there is none.
    """

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._silent_deaths: list[Failure] = []
        self._decisive: Message | None = None
        self._oom_kills_before = oom_kills()
        self.due = float("inf")

    def add_message(self, message: Message, now: float) -> None:
        """Adds a "stop", "failure" or "ended" message."""
        self._messages.append(message)
        self.due = min(self.due, now + JUDGE_DELAY_S)

    def add_silent_death(
        self, node: str, cause: str, state: str = "", host_lost: bool = False
    ) -> None:
        """Adds the end of a node that did not say why.

        Args:
          node, cause, host_lost: see `Failure`.
          state: see `NodeExit`; one that could not be started is a failure of the launcher.
        """
        not_started = state == NOT_STARTED
        death = Failure(node, cause, of_launcher=not_started, host_lost=host_lost)
        self._silent_deaths.append(death)

    def outcome(self, now: float, immediately: bool = False) -> ProgramOutcome | None:
        """Returns the outcome by what came first; None if nothing did, or it is too early to tell.

        Args:
          now: seconds of the monotonic clock.
          immediately: decide now, though a death may not be seen yet.
        """
        first = min(self._messages, key=lambda message: message.time, default=None)
        if first is not None and first.kind == "stop":
            self._decisive = first
            if first.finished:
                return ProgramOutcome("finished", first.reason, EXIT_FINISHED)
            failure = Failure(first.node, first.reason, first.traceback)
            return ProgramOutcome.failed(failure, first.reason)
        if self._silent_deaths:
            return ProgramOutcome.failed(self._silent_deaths[0])
        if first is None or not (immediately or now >= self.due):
            return None
        self._decisive = first
        if first.kind == "ended":
            return ProgramOutcome.failed(Failure(first.node, ENDED))
        says_all = first.final and not first.traceback
        failure = Failure(
            first.node, first.reason, first.traceback, first.bad_input, final=says_all
        )
        return ProgramOutcome.failed(failure, f"{first.node}: {first.reason}")

    def other_failures(self) -> list[Message]:
        """Returns the exceptions that did not decide the outcome, in order of time."""
        failures = [
            message
            for message in self._messages
            if message.kind == "failure" and message is not self._decisive
        ]
        return sorted(failures, key=lambda message: message.time)

    def describe(self, exit_: NodeExit) -> str:
        """Returns why a process ended that did not report it."""
        if exit_.signal:
            return killed_by(exit_.signal, self._oom_kills_before)
        if exit_.state == NOT_STARTED and exit_.error:
            return f"could not be started: {exit_.error}"
        return f"exited with status {exit_.code}" if exit_.code else ENDED
