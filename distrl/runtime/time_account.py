"""Accounts all wall time of a thread, or of a process, to what it does.

Each node has an account for the thread that does its work; code that several nodes use finds its
thread's account with `current_account`. Unless a thread says what it does, its time is OTHER.
A node whose work is done in a server's threads has a `ProcessAccount`.
"""

import threading
import time
from collections.abc import Callable
from types import TracebackType

STATES = (
    "env_step",
    "inference",
    "inference_wait",
    "replay_write",
    "insert_wait",
    "parameter_wait",
    "sampling",
    "sample_wait",
    "transfer",
    "compute",
    "publish",
    "serving",
    "idle",
    "other",
)
"""Names of the states, as reports and metrics have them."""
(
    ENV_STEP,  # environments step, including the wait for them
    INFERENCE,
    INFERENCE_WAIT,  # for a service's answer
    REPLAY_WRITE,
    INSERT_WAIT,  # for room in the table, or for a turn
    PARAMETER_WAIT,
    SAMPLING,  # puts a batch together
    SAMPLE_WAIT,  # for enough data
    TRANSFER,  # to devices
    COMPUTE,  # updates
    PUBLISH,  # new parameters
    SERVING,  # other nodes, in threads without accounts; see `ProcessAccount`
    IDLE,  # no requests
    OTHER,
) = range(len(STATES))
_WAITS = {
    INFERENCE: INFERENCE_WAIT, REPLAY_WRITE: INSERT_WAIT, SAMPLING: SAMPLE_WAIT, OTHER: IDLE
}  # fmt: skip


class TimeAccount:
    """The time of one thread by state.

    A switch closes one state at the reading of the clock that opens the next. So the times of all
    states add up to the time since the account was opened.

    Attributes:
      switch: begins a state; returns the one that ends, to be resumed after a nested one.
      wait: begins the state of waiting for what the current one needs; returns what `switch` does.
      lap: accounts the time since a reading of `clock` to the given state, while the current one
        continues: cheaper than two switches. Nested states keep their time, and the time before
        the last of them is the current state's.
      clock: monotonic, in seconds.
      totals: returns the nanoseconds of each state so far, by name, without states that had none.
        In another thread than the account's own, time that is being counted may be missing.
    """

    switch: Callable[[int], int]
    wait: Callable[[], int]
    lap: Callable[[int, float], None]
    clock: Callable[[], float]
    totals: Callable[[], dict[str, int]]

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        """Opens the account, in the state OTHER. Args: clock: monotonic, in seconds."""
        current, since, times = OTHER, clock(), [0.0] * len(STATES)

        # Variables of a closure, and floats: a switch takes a third less than with attributes, and
        # nanoseconds as integers.
        def switch(state: int) -> int:
            nonlocal current, since
            now = clock()
            before = current
            times[before] += now - since
            since = now
            current = state
            return before

        def wait() -> int:
            return switch(_WAITS.get(current, current))

        def lap(state: int, began: float) -> None:
            nonlocal since
            now = clock()
            if since < began:
                times[current] += began - since
                since = began
            times[state] += now - since
            since = now

        def totals() -> dict[str, int]:
            now_spent = list(times)
            now_spent[current] += clock() - since
            return {name: round(1e9 * spent) for name, spent in zip(STATES, now_spent) if spent}

        self.switch, self.wait, self.lap = switch, wait, lap
        self.clock, self.totals = clock, totals


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.account = TimeAccount()


of_thread = _OfThread()
"""`of_thread.account` is what `current_account` returns, for code that runs at every step."""


def current_account() -> TimeAccount:
    """Returns the calling thread's account, which is opened at its first use."""
    return of_thread.account


def use_account(account: TimeAccount) -> TimeAccount:
    """Makes this the calling thread's account; returns the previous one."""
    before, of_thread.account = of_thread.account, account
    return before


class ProcessAccount:
    """The time of a process that serves others in threads without accounts, such as C++'s.

    Its CPU time, of all threads together but at most the time that passes, is SERVING; the rest is
    IDLE.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.process_time,
    ):
        """Opens the account. Args: clock, cpu_clock: in seconds."""
        self._clock, self._cpu_clock = clock, cpu_clock
        self._read = clock(), cpu_clock()
        self._serving = self._idle = 0.0

    def totals(self) -> dict[str, int]:
        """Returns nanoseconds as `TimeAccount.totals` does; more than one core counts as one."""
        (then, cpu_then), (now, cpu_now) = self._read, (self._clock(), self._cpu_clock())
        self._read = now, cpu_now
        serving = min(cpu_now - cpu_then, now - then)
        self._serving += serving
        self._idle += now - then - serving
        return {
            STATES[SERVING]: round(1e9 * self._serving),
            STATES[IDLE]: round(1e9 * self._idle),
        }


class in_state:  # noqa: N801  # used as a statement
    """`with in_state(ENV_STEP):` accounts the block to a state; then the previous one continues."""

    __slots__ = ("_account", "_before", "_state")

    def __init__(self, state: int):
        self._state = state

    def __enter__(self) -> None:
        self._account = of_thread.account
        self._before = self._account.switch(self._state)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._account.switch(self._before)
