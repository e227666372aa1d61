"""What one process tells while its actor acts and no update falls."""

import time
from collections.abc import Callable

from distrl.actor import ActorLoop

_WAIT_S = 10.0  # without an update, until that is said


class UpdateWait:
    """Says every ten seconds how far the actor is on its way to the next update."""

    def __init__(self, actor: ActorLoop, printer: Callable[[str], None]):
        """Args: actor: what acts. printer: takes lines."""
        self._actor, self._printer = actor, printer
        self.restart()

    def restart(self) -> None:
        """To be called after each update."""
        self._begin, self._acted = time.monotonic(), self._actor.acted
        self._due = self._begin + _WAIT_S

    def note(self, now: float) -> None:
        """Says it if it is time to. Args: now: `time.monotonic()`."""
        if now >= self._due:
            self._due = now + _WAIT_S
            self._printer(
                f"acting: no update for {now - self._begin:.0f} s, "
                f"{self._actor.acted - self._acted:,} environment steps since the last one"
            )
