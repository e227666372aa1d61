"""Time that counts only while this process runs."""

MAX_GAP_S = 2.0  # counted between two looks at the clock: longer, and this process did not run


class RunningTime:
    """The time that passes between looks at the clock, which come about once a second or faster.

    A longer gap hardly counts: then this process did not run, nor did what it watches where the
    whole program was frozen (a paused container, a suspended job).
    """

    def __init__(self) -> None:
        self._last: float | None = None

    def passed(self, now: float) -> float:
        """Returns the seconds since the last look, as far as they count; 0 at the first one.

        Args:
          now: seconds of the monotonic clock.
        """
        last, self._last = self._last, now
        return 0.0 if last is None else min(now - last, MAX_GAP_S)


class Silence:
    """How long another process has been silent, in `RunningTime`."""

    def __init__(self) -> None:
        self._time = RunningTime()
        self._seconds = 0.0

    def end(self) -> None:
        """To be called whenever the other process has sent something."""
        self._seconds = 0.0

    def seconds(self, now: float) -> float:
        """Returns the length; to be called about once a second, whether it matters or not.

        Args:
          now: seconds of the monotonic clock.
        """
        self._seconds += self._time.passed(now)
        return self._seconds
