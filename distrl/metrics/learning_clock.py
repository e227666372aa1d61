"""Measures how long a run has been learning."""

import time


class LearningClock:
    """Counts seconds since the first learner step, over all programs of a run.

    The time that a resumed program takes to start does not count.
    """

    def __init__(self) -> None:
        self._made = time.monotonic()
        self._first_step: float | None = None  # in this program; the time of earlier ones:
        self._learner_steps = 0
        self._seconds = 0.0

    def restore(self, learner_steps: int, seconds: float) -> None:
        """Continues from that many learner steps and seconds of earlier programs."""
        self._learner_steps, self._seconds = learner_steps, seconds

    def add(self, learner_steps: int) -> float | None:
        """Takes the number of learner steps made so far.

        Returns:
          At this program's first learner step, the seconds since the clock was made; else None.
        """
        if self._first_step is not None or learner_steps <= self._learner_steps:
            return None
        self._first_step = time.monotonic()
        return self._first_step - self._made

    @property
    def seconds(self) -> float:
        """Seconds of learning."""
        since = 0.0 if self._first_step is None else time.monotonic() - self._first_step
        return self._seconds + since
