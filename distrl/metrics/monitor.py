"""The monitor, which adds up the reports of all nodes."""

import collections
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from distrl.episodes import RecentEpisodes
from distrl.goal import Goal, Progress
from distrl.metrics.evaluations import Evaluations
from distrl.metrics.learner_totals import LearnerTotals
from distrl.metrics.learning_clock import LearningClock
from distrl.metrics.progress_line import progress_line
from distrl.metrics.reports import (
    ACTED,
    EVALUATED,
    LEARNED,
    METRICS,
    Report,
    checked_metrics,
    first_number,
    kind_of,
    life_of,
)
from distrl.metrics.run_status import RunStatus
from distrl.metrics.sinks import MetricsWriter
from distrl.specs import EnvironmentSpec


class Monitor:
    """Adds up the reports of all nodes, prints progress, writes `metrics.csv`, ends the run.

    Attributes:
      evaluations: what the evaluator has reported.
    """

    def __init__(
        self,
        goal: Goal,
        on_end: Callable[[str, bool], None],
        writer: MetricsWriter | None = None,
        interval: float = 2.0,
        printer: Callable[[str], None] = print,
        spec: EnvironmentSpec | None = None,
        agents: Sequence[str] = (),
        status: RunStatus | None = None,
    ):
        """Args:
        goal: when the run ends, with "auto" already resolved.
        on_end: called once, with the reason and with whether the run reached its goal.
        writer: writes the metrics; None: they are not written.
        interval: seconds between two lines of progress.
        printer: prints a line of progress.
        spec: the environment's spec, for its `env_info` and its reward's shape; None: no
          `env_info`, and a scalar reward.
        agents: agents whose mean returns the evaluator reports.
        status: writes the run's status for other processes; None: it is not written.
        """
        self._goal = goal
        shape = () if spec is None else spec.reward.shape
        self._components = math.prod(shape) if shape else 0  # a vector reward's components
        has_success = spec is not None and "success" in spec.env_info
        self._recent = RecentEpisodes(goal.window, self._components, has_success)
        self._agents = agents
        self._status = status or RunStatus(goal, None, printer)
        self._on_end = on_end
        self._interval = interval
        self._printer = printer
        self._lock = threading.Lock()
        self._seen: dict[str, int] = {}
        self._acted = 0
        self._acted_by: collections.Counter[str] = collections.Counter()
        self._episodes_by: collections.Counter[str] = collections.Counter()
        self._unreported = 0  # steps of lives that ended before a report; their episodes are lost
        self._episodes = 0
        self._restarts = 0
        self._learner = LearnerTotals()
        self.evaluations = Evaluations(printer)
        self._node_columns: dict[str, float | None] = {}  # columns of single nodes
        self._began = time.monotonic()
        self._learning = LearningClock()
        self._last_line = (self._began, 0)
        self._ended = False
        self._writer = writer or MetricsWriter(())

    def report(
        self,
        node: str,
        number: int,
        reports: Sequence[Mapping[str, Any]],
        newest: Callable[[], Report] | None = None,
        judged: bool = True,
    ) -> None:
        """Adds a node's reports.

        Args:
          node: the node's name.
          number: counts up from `first_number` of the node's life; a repeated call is dropped.
          reports: from `Actor.take_report`, `Learner.take_report` or `Evaluator.play`, or about
            the node's time; each may have "metrics" of the node, columns named `NODE/NAME`.
          newest: returns what a learner's counts in `reports` leave out; called when a row is
            written, so that all of the row is from the same update. None: nothing is left out.
          judged: whether the run may end with these reports; if not, with the next ones that may.

        Raises:
          SpecError: a report is of an unknown kind, or of another group's; none is added.
        """
        kinds = [kind_of(node, report) for report in reports]
        columns = {name: v for each in reports for name, v in checked_metrics(node, each).items()}
        with self._lock:
            if self._seen.get(node, -1) >= number:
                return
            self._seen[node] = number
            self._node_columns.update(columns)
            for kind, report in zip(kinds, reports):
                self._add(node, life_of(number), kind, dict(report))
            line = time.monotonic() - self._last_line[0] >= self._interval
            row, status = line or self._writer.is_due(self._acted), self._status.is_due
            if newest is not None and (row or status):
                self._add(node, life_of(number), LEARNED, newest())
            if line:
                self.line()
            elif row:
                self._write(self.snapshot())
            elif status:
                self._status.write(self._with_clock(self.snapshot()))
            if judged:
                self._judge()

    def close_books(self, node: str, life: int, acted: int) -> int:
        """Counts what a node whose life has ended never reported. Repeating a call is harmless.

        Args:
          node: the node's name.
          life: the life. Its later reports are dropped, since its steps are counted now.
          acted: environment steps of all the node's lives in this program, as known elsewhere.

        Returns:
          The steps that are counted: at least as many as were reported.
        """
        with self._lock:
            self._seen[node] = max(self._seen.get(node, -1), first_number(life + 1) - 1)
            unreported = max(0, acted - self._acted_by[node])
            self._unreported += unreported
            self._count(node, unreported)
            return self._acted_by[node]

    def state(self) -> dict[str, Any]:
        """Returns everything known, as plain data for JSON; safe in any thread."""
        with self._lock:
            return {
                "env_steps_acted": self._acted,
                "env_steps_unreported": self._unreported,
                "episodes": self._episodes,
                "recent": self._recent.records,
                "env_restarts": self._restarts,
                "learner": self._learner.state(),
                "evaluation": dict(self.evaluations.last),
                "seconds": time.monotonic() - self._began,
                "seconds_learning": self._learning.seconds,
                "mean_return": self.mean_return,
                "full_window": self._recent.is_full,
            }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continues from what `state` returned, as if no time had passed since."""
        with self._lock:  # not `_seen`: only this program's nodes reach its monitor
            self._acted, self._episodes = state["env_steps_acted"], state["episodes"]
            self._unreported = state.get("env_steps_unreported", 0)  # older checkpoints have none
            self._restarts = state["env_restarts"]
            self._recent.extend(state["recent"])
            self._learner.restore(state["learner"])
            self.evaluations.last = dict(state["evaluation"])
            if self._learner.spent and self._goal.is_acted(self._acted, self._episodes):
                self._learner.spent = self._goal.acting_budget  # perhaps smaller than before
            self._began = time.monotonic() - state["seconds"]
            self._learning.restore(self._learner.learner_steps, state["seconds_learning"] or 0.0)
            self._last_line = (time.monotonic(), self._acted)
            self._writer.resume(self._acted)

    @property
    def standing(self) -> tuple[int, int, float | None]:
        """Learner steps, recent episodes, and their mean return."""
        with self._lock:
            return self._learner.learner_steps, len(self._recent), self.mean_return

    def evaluations_after(self, number: int) -> list[tuple[int, Report]]:
        """See `Evaluations.after`."""
        with self._lock:
            return self.evaluations.after(number)

    def forget_episodes(self) -> None:
        """Forgets the recent episodes, as they are of another policy than the current one."""
        with self._lock:
            self._recent.clear()

    def judge(self) -> None:
        """Ends the run if the goal is already reached; for use after `restore`."""
        with self._lock:
            self._judge()

    def end(self, reason: str) -> None:
        """Ends the run as if its goal were reached, unless it has ended."""
        with self._lock:
            if not self._ended:
                self._ended = True
                self._on_end(reason, True)

    def _add(self, node: str, life: int, kind: str | None, report: Report) -> None:
        report.pop(METRICS, None)
        if "time" in report:
            if kind == LEARNED:
                self._status.times.begin()
            self._status.times.add(node, life, report)
            del report["time"]
        self._restarts += int(report.get("env_restarts", 0))
        if kind == LEARNED:
            self._learner.add(report)
            first = self._learning.add(report["learner_steps"])
            if first is not None:
                self._printer(f"first learner step after {first:.1f} s")
        elif kind == EVALUATED:
            self.evaluations.add(report)
        elif kind == ACTED:
            self._count(node, int(report["env_steps"]))
            # With several agents a record is of one agent, not of an environment's episode.
            episodes = int(report.get("env_episodes", len(report["episodes"])))
            self._episodes += episodes
            self._episodes_by[node] += episodes
            self._recent.extend(report["episodes"])
            seconds = time.monotonic() - self._began
            self._writer.add_episodes(seconds, self._acted, node, report["episodes"])

    def _count(self, node: str, steps: int) -> None:
        self._acted += steps
        self._acted_by[node] += steps

    @property
    def acted(self) -> int:
        """Environment steps that the actors have taken, in all programs of the run."""
        return self._acted

    @property
    def episodes(self) -> int:
        """Episodes that have ended, in all programs of the run."""
        return self._episodes

    def acted_by(self, node: str) -> int:
        """Returns the environment steps that a node has reported in this program."""
        return self._acted_by[node]

    def episodes_by(self, node: str) -> int:
        """Returns the episodes that a node has reported in this program."""
        return self._episodes_by[node]

    @property
    def mean_return(self) -> float | None:
        """The mean return of the last `window` episodes; None before the first one ended."""
        return self._recent.mean_return

    def snapshot(self) -> dict[str, Any]:
        """Returns all metrics; None for those that are not known or not reported."""
        return {
            "seconds": round(time.monotonic() - self._began, 2),
            "env_steps": self._acted,
            "env_steps_unreported": self._unreported,
            "trained_steps": self._learner.trained_steps,
            "learner_steps": self._learner.learner_steps,
            "episodes": self._episodes,
            **self._recent.figures(),
            "env_restarts": self._restarts,
            **self.evaluations.columns(self._components, self._agents),
            **self._status.columns(),
            **self._learner.columns(),
            **self._node_columns,
        }

    def line(self) -> None:
        """Prints one line of progress and appends one to `metrics.csv`."""
        now, (then, steps_then) = time.monotonic(), self._last_line
        state = self.snapshot()
        speed = (state["env_steps"] - steps_then) / max(now - then, 1e-9)
        self._last_line = (now, state["env_steps"])
        text = progress_line(state, speed, len(self._recent))
        self._printer(text)
        self._write(state)

    def _write(self, row: Mapping[str, Any]) -> None:
        self._writer.write(row)
        self._learner.row_written()
        self._status.row_written()
        if self._status.is_due:
            self._status.write(self._with_clock(row))

    def _with_clock(self, row: Mapping[str, Any]) -> dict[str, Any]:
        return {**row, "seconds_learning": round(self._learning.seconds, 2)}

    def close(self) -> None:
        """Prints the last lines and closes the files."""
        with self._lock:
            self.line()
            self._status.write(self._with_clock(self.snapshot()), ended=True)
            verdict = self._status.verdict()
            if verdict is not None:
                self._printer(verdict.sentence)
            self._writer.close()

    def _judge(self) -> None:
        """Calls `on_end` the first time that the goal or a budget is reached."""
        if self._ended:
            return
        verdict = self._goal.judge(
            Progress(
                env_steps=self._acted,
                episodes=self._episodes,
                trained_steps=self._learner.trained_steps,
                learner_steps=self._learner.learner_steps,
                seconds=self._learning.seconds,
                mean_return=self.mean_return,
                success_rate=self._recent.success_rate,
                full_window=self._recent.is_full,
                evaluation_return=self.evaluations.last.get("evaluation_return"),
                acting_over=self._learner.spent == self._goal.acting_budget,
            )
        )
        if verdict is not None:
            self._ended = True
            self._on_end(*verdict)
