"""The monitor and the checkpointer of a task when everything runs in one process."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from distrl.actor import ActorLoop
from distrl.checkpointing.checkpointer import Checkpointer
from distrl.checkpointing.generations import Generations
from distrl.checkpointing.resume_point import ResumePoint, note_resumed
from distrl.errors import CallbackError, SaveError
from distrl.metrics.monitor import Monitor
from distrl.metrics.reports import SPENT, Report, first_number
from distrl.programs.build import Builder
from distrl.programs.running.saving import make_checkpointer
from distrl.programs.single_process_parts import TaskParts
from distrl.runtime.time_account import current_account


class TaskRun:
    """The counts of one task on their way to its monitor, and its checkpoints.

    Attributes:
      monitor: adds them up.
      ending: the reason for the task's end, and whether its goal was reached; None: not yet.
    """

    def __init__(self, builder: Builder, run_dir: Path | None, life: int):
        """Args: builder: the task's builder. run_dir: its folder. life: this process's life."""
        self.ending: tuple[str, bool] | None = None
        self._goal = builder.task.goal
        updates = self._goal.max_learner_steps, self._goal.max_trained_steps
        self._counts_updates, self._unjudged = updates != (None, None), False
        self._number, self._acted_elsewhere = first_number(life), (0, 0)
        self._checkpointer: Checkpointer | None = None
        self.monitor: Monitor = builder.make_monitor(self._end, run_dir)
        builder.callbacks.end = self.monitor.end

    def _end(self, reason: str, reached: bool) -> None:
        self.ending = reason, reached

    def start(
        self,
        parts: TaskParts,
        actor: ActorLoop,
        run_dir: Path | None,
        resume_point: ResumePoint,
        give_up: Callable[[], None],
        stop: threading.Event,
        state: dict[str, Any] | None,
        generations: Generations | None,
    ) -> None:
        """Loads the counts to resume from, and begins to save.

        Args:
          parts: the task's parts.
          actor: acts for it; it has made no step yet.
          run_dir: the run folder.
          resume_point, give_up, stop: see `single_process`.
          state: the monitor's state to resume from; None: there is none.
          generations: numbers the checkpoint generations of several tasks.
        """
        self._parts, self._learner = parts, parts.learner
        if run_dir is None:
            return
        if state is not None:
            self.monitor.restore(state)
            parts.resumed["monitor"] = self.monitor.state()
            folder = parts.builder.experiment.task_dir(run_dir, parts.builder.task.name)
            for part, facts in parts.resumed.items():
                note_resumed(folder, part, facts)
        before, learner = (self.monitor.acted, self.monitor.episodes), self._learner

        def counts() -> dict[str, int]:  # as of now, not of the last report
            steps, episodes = learner.acted_elsewhere
            return {
                "env_steps_acted": before[0] + actor.acted + steps,
                "episodes": before[1] + actor.episodes + episodes,
            }

        self._checkpointer = make_checkpointer(
            parts.builder,
            run_dir,
            parts.learner,
            parts.replay,
            self.monitor.state,
            resume_point,
            give_up,
            generations=generations,
            at_least=counts,
        )
        self._checkpointer.start(stop)

    def report(self, *reports: Report, judged: bool = True, failed: bool = False) -> None:
        """Passes on reports. Args: judged: see `Monitor.report`. failed: see `report_counts`."""
        newest = None if failed or not self._learner.version else self._learner_report
        number, self._number = self._number, self._number + 1  # each has its own if one fails
        self.monitor.report("single_process", number, reports, newest, judged)

    def _learner_report(self) -> Report:
        """Returns the learner's report with its logs."""
        report = self._learner.take_report()
        report["table_size"] = self._parts.replay.info().size
        report["time"] = current_account().totals()
        return report

    def report_counts(
        self,
        acted: Report,
        *,
        acting: bool = False,
        spent: bool = False,
        logs: bool = False,
        failed: bool = False,
    ) -> None:
        """Passes on what was done.

        An update without new steps that no budget counts is passed on with the next one.

        Args:
          acted: the actor's report.
          acting: it acts on, and has learned nothing since the last report.
          spent: the actor's budget is spent, and there is nothing left to learn from.
          logs: with the learner's logs, which cost more; a row of metrics has them anyway.
          failed: never with the logs: reading them may fail as the run did.
        """
        if acting:  # the next update judges it: when that is does not depend on the time
            self.report(acted, judged=False)
            self._unjudged = True
            return
        learner = self._learner
        (steps, episodes), before = learner.acted_elsewhere, self._acted_elsewhere
        elsewhere: Report = {  # without the records of these episodes
            "env_steps": steps - before[0],
            "episodes": [],
            "env_episodes": episodes - before[1],
        }
        self._acted_elsewhere = steps, episodes
        news = [report for report in (acted, elsewhere) if any(report.values())]
        if not (news or spent or logs or failed or self._unjudged or self._counts_updates):
            return
        self._unjudged = False
        counts = learner.counts()
        if spent:
            counts[SPENT] = self._goal.acting_budget
        self.report(*news, counts, failed=failed)
        if logs:  # last, as reading them may fail
            self.report(self._learner_report(), judged=False)

    def check(self) -> None:
        """Saves if it is time to; raises what saving raised before."""
        if self._checkpointer is not None:
            self._checkpointer.check()

    def close(self, error: BaseException | None, printer: Callable[[str], None]) -> None:
        """Saves for the last time. Args: error: why the run ends, if it failed."""
        if self._checkpointer is None:
            return
        try:
            self._checkpointer.close()
        except (CallbackError, SaveError) as failure:
            if error is not None:  # which is why the run ends
                printer(f"distrl: {failure}")
            elif isinstance(failure, SaveError):
                reason = f"{self.ending[0]}, but " if self.ending else ""
                raise SaveError(f"{reason}{failure}") from failure
            else:
                raise
