"""What is done about a node that ends or hangs: restarted, or the program ends with it."""

import dataclasses
import re

SAME = 3  # lives in a row that one traceback may end
_FRAME = re.compile(r'^  File "(.*)", line (\d+), in (.*)$', re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class RestartPolicy:
    """For the nodes of a group.

    Attributes:
      restarts: times that one of them may be started again; 0: its end ends the program.
      backoff: seconds before the first restart; doubled after each life that ended within
        `steady` seconds, up to `most_backoff`.
      most_backoff: seconds.
      steady: seconds after which a life counts as a good one.
    """

    restarts: int = 0
    backoff: float = 0.2
    most_backoff: float = 20.0
    steady: float = 10.0


@dataclasses.dataclass(frozen=True)
class Limits:
    """How long a node may hang, in seconds. None: for ever.

    Attributes:
      idle: it works, uses no processor, and does not get on: an environment's step that blocks, a
        deadlock.
      busy: it works, uses the processor, and does not get on: a loop without end; but also one
        long step or compilation.
      stopped: it is stopped by a signal (SIGSTOP), or its Python threads do not run.
    """

    idle: float | None = 60.0
    busy: float | None = 600.0
    stopped: float | None = 10.0


class RestartHistory:
    """The lives of one node that have ended, and whether it may have another."""

    def __init__(self, rule: RestartPolicy):
        self._rule = rule
        self._delay = rule.backoff
        self._last = ""
        self._same = 0
        self.causes: list[str] = []

    def another(
        self, cause: str, traceback: str | None, seconds: float, tells: bool = True
    ) -> float | str:
        """Of a life that ended: seconds until the next one, or why there is none.

        Args:
          cause: one line.
          traceback: the exception's, if there was one.
          seconds: how long it was.
          tells: the cause lies in the node, as that of a SIGKILL need not.
        """
        self.causes.append(cause)
        place = _place(traceback) or cause
        counts = traceback is not None or (tells and seconds < self._rule.steady)
        self._same = self._same + 1 if counts and place == self._last else 1
        self._last = place if counts else ""
        if self._same >= SAME:
            return f"as {SAME} lives in a row"
        if len(self.causes) > self._rule.restarts:
            return f"after {self._rule.restarts} restarts, which is all that there may be"
        if seconds >= self._rule.steady:
            self._delay = self._rule.backoff
        delay, self._delay = self._delay, min(2 * self._delay, self._rule.most_backoff)
        return delay


def _place(traceback: str | None) -> str:
    """Where an exception came from, without what differs from one time to the next."""
    return "\n".join("|".join(frame) for frame in _FRAME.findall(traceback or ""))
