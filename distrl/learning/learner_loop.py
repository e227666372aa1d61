"""The loop of a learner: updates, until something ends them."""

import abc
import functools
import math
import time
from collections.abc import Callable, Iterator

from distrl.errors import DeadlineExceeded, Stopped
from distrl.learning.finite_params import FiniteParams
from distrl.metrics.reports import Report
from distrl.replay.buffer import ReplayReader
from distrl.runtime.patience import Deadline, Unless
from distrl.runtime.time_account import SAMPLING, in_state
from distrl.types import Sample

_RATIO_S = 1.0  # between two checks of whether a table has got a ratio of samples to inserts
_LAST_BATCH_S = 1.0  # between two checks for a further batch, when acting is over


class LearnerLoop(abc.ABC):
    """The loop of a learner.

    Attributes:
      published: the newest versions of the parameters.
      waited: seconds of waiting for a batch since the last update.
      drops_when_done: whether `step` continues to take batches when the learner is done: its
        actors, which wait for room in its table, act for other learners too. False unless set.
    """

    published: FiniteParams
    waited: float
    drops_when_done = False
    _no_ratio_until = -math.inf
    _replay: ReplayReader
    _timeout: float

    @property
    @abc.abstractmethod
    def is_done(self) -> bool:
        """Whether the learner has reached a limit of its own."""

    @abc.abstractmethod
    def update(self, sample: Sample) -> None:
        """Makes one update on the given batch. Raises what `step` does."""

    @abc.abstractmethod
    def take_report(self) -> Report:
        """Returns totals, and the logs since the last call."""

    def can_step(self) -> bool:
        """Returns whether `step` would find a batch without waiting."""
        if not self.is_done:
            return self._replay.can_sample()
        if not self.drops_when_done or time.monotonic() < self._no_ratio_until:
            return False
        if not self._replay.can_sample():
            return False
        if not self._replay.has_more():  # no actor waits: there is no ratio of samples to inserts
            self._no_ratio_until = time.monotonic() + _RATIO_S
            return False
        return True

    def has_more(self) -> bool:
        """See `ReplayReader.has_more`."""
        return self._replay.has_more()

    @functools.cached_property
    def _dataset(self) -> Iterator[Sample]:
        """The replay's batches, each within the learner's timeout."""
        return self._replay.make_dataset(self._timeout)

    def step(self) -> None:
        """Makes one update, on the next batch; drops the batch if the learner is done.

        Raises:
          DeadlineExceeded: no batch came within the timeout.
          Stopped: the program stops, or another process of the learner ends the updates.
          PeerError: another process of the learner has ended.
          Diverged: an earlier update was not finite, or too many in a row were skipped.
        """
        began = time.monotonic()
        with in_state(SAMPLING):
            sample = next(self._dataset)
        if self.is_done:
            return
        self.waited += time.monotonic() - began
        self.update(sample)

    def run(
        self,
        should_stop: Callable[[], bool],
        report: Callable[[Report], None],
        report_interval: float = 0.1,
        acting_over: Callable[[], bool] | None = None,
    ) -> bool:
        """Makes updates until `should_stop()`, reporting as `Actor.run` does.

        Args:
          should_stop: asked before each update.
          report: see `Actor.run`.
          report_interval: seconds between two reports.
          acting_over: returns whether all that actors will ever make is in the table; must not
            block, and is also called with the replay's lock held. None: they act as long as the
            program runs.

        Returns:
          Whether acting is over and there is no further batch.
        """
        due = time.monotonic()  # the first update is news
        used_up = False
        try:
            while not (self.is_done or used_up or should_stop()):
                if self.published.holds and not self._replay.can_sample():
                    self.published.add_held()  # now: the next update may be far off
                if acting_over is None:
                    self.step()
                else:
                    used_up = not self._step_unless_over(acting_over)
                if time.monotonic() >= due:
                    report(self.take_report())
                    due = time.monotonic() + report_interval
        except Stopped:
            pass  # the program stops, and so the wait for a batch ended
        finally:
            self.published.add_held()
        report(self.take_report())
        return used_up

    def _step_unless_over(self, acting_over: Callable[[], bool]) -> bool:
        """As `step`, but returns False if acting is over and there is no further batch."""
        began, deadline = time.monotonic(), None
        while True:
            over = acting_over()  # asked first: nothing is inserted between this and the next line
            if over and not self._replay.has_more():
                return False
            limit = _LAST_BATCH_S if over else Unless(self._timeout, acting_over)
            try:
                with in_state(SAMPLING):
                    sample = self._replay.sample(limit)
            except DeadlineExceeded:
                deadline = deadline or Deadline(self._timeout)
                if deadline.left() <= 0 or not (over or acting_over()):
                    raise
            else:
                self.waited += time.monotonic() - began
                self.update(sample)
                return True
