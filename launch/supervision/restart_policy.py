"""When a node that has ended is restarted, and how long a node may hang."""

import dataclasses
import re

from distrl.errors import PeerError

MAX_SAME_FAILURES = 3  # lives in a row that end alike before the program ends
MAX_PATIENCE_S = 300.0  # between restarts of a node that only its host keeps from working
_FRAME = re.compile(r'^  File "(.*)", line (\d+), in (.*)$', re.MULTILINE)
_OF_PEER = f"{PeerError.__name__}:"  # as in `describe_error`


@dataclasses.dataclass(frozen=True)
class RestartPolicy:
    """The limit and the delays of restarts of a group's nodes.

    Attributes:
      restarts: restarts of one node at most; 0: its end ends the program.
      backoff: seconds before the first restart; doubled after each life shorter than
        `stable_after`, up to `max_backoff`.
      max_backoff: seconds.
      stable_after: seconds after which a life no longer counts as a failed start.
    """

    restarts: int = 0
    backoff: float = 0.2
    max_backoff: float = 20.0
    stable_after: float = 10.0


@dataclasses.dataclass(frozen=True)
class HangLimits:
    """Seconds before a node is considered hung. None: never.

    Attributes:
      idle: a working node without progress and without CPU use: an environment step that blocks,
        a deadlock.
      busy: a working node without progress that uses the CPU: an endless loop, but also a single
        long step or compilation.
      stopped: a node stopped by a signal (SIGSTOP), or whose Python threads do not run.
    """

    idle: float | None = 60.0
    busy: float | None = 600.0
    stopped: float | None = 10.0


class RestartHistory:
    """The lives of one node that have ended, and whether it may have another.

    Attributes:
      policy: its group's policy.
      causes: why each of them ended, one line each.
    """

    def __init__(self, policy: RestartPolicy) -> None:
        self.policy = policy
        self._next_backoff = policy.backoff
        self._last_failure = ""
        self._same_failures = 0
        self.causes: list[str] = []

    def next_delay(
        self, cause: str, traceback: str | None, seconds: float, node_at_fault: bool = True
    ) -> float | str:
        """Records the end of a life, and decides about a restart.

        Args:
          cause: one line.
          traceback: the exception's traceback, if there was one.
          seconds: the length of the life.
          node_at_fault: False where something else may have ended it, as with SIGKILL.

        Returns:
          Seconds until the restart; or why there is none, for messages.
        """
        policy = self.policy
        self.causes.append(cause)
        failure = _frames(traceback) or cause
        # A node that ran well and then lost another one is not what fails.
        own_error = traceback is not None and not cause.startswith(_OF_PEER)
        counts = own_error or (node_at_fault and seconds < policy.stable_after)
        same = counts and failure == self._last_failure
        self._same_failures = self._same_failures + 1 if same else 1
        self._last_failure = failure if counts else ""
        if self._same_failures >= MAX_SAME_FAILURES:
            return f"{MAX_SAME_FAILURES} times in a row"
        if len(self.causes) > policy.restarts:
            return f"after {policy.restarts} restarts, the most allowed"
        if seconds >= policy.stable_after:
            self._next_backoff = policy.backoff
        return self._double(policy.max_backoff)

    def patient_delay(self) -> float:
        """Returns seconds until a restart that `next_delay` has not allowed."""
        return self._double(MAX_PATIENCE_S)

    def _double(self, limit: float) -> float:
        delay = self._next_backoff
        self._next_backoff = min(2 * delay, limit)
        return delay


def _frames(traceback: str | None) -> str:
    """Returns the frames of a traceback, without what differs between occurrences."""
    return "\n".join("|".join(frame) for frame in _FRAME.findall(traceback or ""))
