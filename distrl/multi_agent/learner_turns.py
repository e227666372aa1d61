"""Several learners in one process, which make their updates in turn."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from distrl.errors import DeadlineExceeded, Stopped
from distrl.learner import Learner
from distrl.metrics.reports import Report
from distrl.runtime.heartbeat import main_thread_heartbeat
from distrl.runtime.patience import Deadline
from distrl.runtime.time_account import SAMPLE_WAIT, in_state

_REPORT_S = 0.1  # between two reports of a learner
_SHORTEST_S, _LONGEST_S = 2e-4, 4e-3  # between two checks of the tables while none has a batch


class Turn(NamedTuple):
    """A learner, and what it needs to run.

    Attributes:
      name: name of its task.
      learner: the learner.
      report: takes its reports; see `Actor.run`.
      acting_over: see `Learner.run`.
      flush: returns when all reports have been processed.
    """

    name: str
    learner: Learner
    report: Callable[[Report], None]
    acting_over: Callable[[], bool] | None = None
    flush: Callable[[], None] = lambda: None

    def is_used_up(self) -> bool:
        """Returns whether acting is over and there is no further batch."""
        # Asked first: nothing is inserted between this and the next line.
        return self.acting_over is not None and self.acting_over() and not self.learner.has_more()


def run_in_turn(turns: Sequence[Turn], stop: threading.Event, timeout: float) -> list[str]:
    """Makes updates until `stop` is set or no learner is left that may learn.

    In each round every learner whose table has a batch makes one update, in the order of `turns`;
    none waits for another's batch. A learner that is done drops its batches, see `LearnerLoop`.

    Args:
      turns: the learners.
      stop: ends the updates.
      timeout: seconds without a batch for any of them; see `distrl.runtime.patience`.

    Returns:
      Names of the tasks for which acting is over and there is no further batch.

    Raises:
      DeadlineExceeded: no table had a batch in time.
      PeerError, Diverged: as in `Learner.step`.
    """
    remaining, done, used_up = list(turns), set[str](), list[str]()
    due = dict.fromkeys((turn.name for turn in turns), 0.0)
    heartbeat = main_thread_heartbeat()
    try:
        while not stop.is_set():
            heartbeat.tick()
            for turn in remaining:
                if turn.learner.is_done and turn.name not in done:
                    done.add(turn.name)
                    turn.report(turn.learner.take_report())
                    turn.flush()  # the goal depends on this report, and there may be no later one
            active = [turn for turn in remaining if turn.name not in done]
            if not active:
                break
            ready = [turn for turn in remaining if turn.learner.can_step()]
            for turn in ready:
                turn.learner.step()
                if time.monotonic() >= due[turn.name]:
                    turn.report(turn.learner.take_report())
                    due[turn.name] = time.monotonic() + _REPORT_S
            if ready:
                continue
            ended = [turn for turn in active if turn.is_used_up()]
            used_up += [turn.name for turn in ended]
            remaining = [turn for turn in remaining if turn not in ended]
            active = [turn for turn in active if turn not in ended]
            if not active:
                break
            heartbeat.wait()
            with in_state(SAMPLE_WAIT):
                _wait_for_batch(active, remaining, stop, timeout)
    except Stopped:
        pass  # the program stops, and so a wait ended
    for turn in turns:
        turn.report(turn.learner.take_report())
    return used_up


def drop_batches(turns: Sequence[Turn], stop: threading.Event) -> None:
    """Drops the batches of learners that are done until `stop`; see `LearnerLoop`.

    Returns at once if there are no such learners.
    """
    learners = [turn.learner for turn in turns]
    dropping = [each for each in learners if each.is_done and each.drops_when_done]
    pause = _SHORTEST_S
    try:
        while dropping and not stop.wait(pause):
            ready = [learner for learner in dropping if learner.can_step()]
            for learner in ready:
                learner.step()
            pause = _SHORTEST_S if ready else min(2 * pause, _LONGEST_S)
    except Stopped:
        pass  # the program stops, which closed a table


def _wait_for_batch(
    active: Sequence[Turn], turns: Sequence[Turn], stop: threading.Event, timeout: float
) -> None:
    """Waits until a table has a batch, a learner has nothing left to wait for, or `stop` is set.

    Args:
      active: the learners that are not done.
      turns: all learners whose tables are checked.
      stop, timeout: see `run_in_turn`.
    """
    deadline, pause, began = Deadline(timeout), _SHORTEST_S, time.monotonic()
    while not stop.wait(pause):
        if any(turn.learner.can_step() for turn in turns):
            break
        if any(turn.is_used_up() for turn in active):
            break
        names = ", ".join(turn.name for turn in active)
        if deadline.left() <= 0:
            raise DeadlineExceeded(f"waited for a batch of {names}: {deadline.reason()}")
        if deadline.line_due():
            deadline.tell(f"waits for a batch of {names}")
        pause = min(2 * pause, _LONGEST_S)
    for turn in active:
        turn.learner.waited += time.monotonic() - began
