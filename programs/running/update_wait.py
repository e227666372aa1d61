"""Progress reports of one process between two updates."""

import time
from collections.abc import Callable

from distrl.actor import ActorLoop

_WAIT_S = 10.0  # seconds without an update between two reports


class UpdateWait:
    """Prints every ten seconds how many steps the actor has taken since the last update."""

    def __init__(self, actor: ActorLoop, printer: Callable[[str], None]):
        """Args: actor: the actor. printer: takes lines."""
        self._actor, self._printer = actor, printer
        self.restart()

    def restart(self) -> None:
        """To be called after each update."""
        self._begin, self._acted = time.monotonic(), self._actor.acted
        self._due = self._begin + _WAIT_S

    def note(self, now: float) -> None:
        """Prints a line if one is due. Args: now: `time.monotonic()`."""
        if now >= self._due:
            self._due = now + _WAIT_S
            self._printer(
                f"acting: no update for {now - self._begin:.0f} s, "
                f"{self._actor.acted - self._acted:,} environment steps since the last one"
            )
