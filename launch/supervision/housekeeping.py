"""Work of the launcher, or of a host daemon, whose failure must not end the program at once."""

import traceback
from collections.abc import Callable
from typing import Protocol

from distrl.launch.supervision.result import LAUNCHER, Failure

MAX_FAILURES = 10  # failures in a row of a step without which the program cannot continue


class Notes(Protocol):
    """Where failures are shown: the launcher's `Journal`, or a host daemon's stderr."""

    def say(self, line: str) -> None:
        """Shows a line to the user."""

    def note(self, line: str) -> None:
        """Keeps a line in the log."""


class Housekeeping:
    """Does things that the operating system may refuse: a full disk, no descriptor, no process.

    A refusal is shown once, and again when its reason changes; the caller tries again later.

    Args:
      journal: where failures are shown.
    """

    def __init__(self, journal: Notes) -> None:
        self._journal = journal
        self._reasons: dict[str, str] = {}  # reasons of the last failures, by task
        self._counts: dict[str, int] = {}  # numbers of failures in a row, by task

    def attempt(self, what: str, task: Callable[[], object]) -> int:
        """Calls `task`. Returns 0, or how often it has failed in a row with an OSError.

        Args:
          what: names the task, in messages.
          task: what to do. Errors other than OSError are raised.
        """
        try:
            task()
        except OSError as error:
            reason = str(error)
            if self._reasons.get(what) != reason:
                self._reasons[what] = reason
                self._journal.say(f"{what} failed: {reason}; trying again")
            self._counts[what] = self._counts.get(what, 0) + 1
            return self._counts[what]
        if self._counts.pop(what, 0):
            del self._reasons[what]
            self._journal.note(f"{what} works again")
        return 0

    def attempt_step(self, what: str, step: Callable[[], object]) -> Failure | None:
        """Calls `step`, without which the program cannot continue.

        Returns:
          What the program has to end with: `step` failed `MAX_FAILURES` times in a row, or with an
          error other than OSError.
        """
        try:
            failures = self.attempt(what, step)
        except Exception as error:
            cause = f"{what} failed: {type(error).__name__}: {error}"
            return Failure(LAUNCHER, cause, traceback.format_exc(), of_launcher=True)
        if failures < MAX_FAILURES:
            return None
        cause = f"{what} failed {failures} times in a row: {self._reasons[what]}"
        return Failure(LAUNCHER, cause, of_launcher=True)
