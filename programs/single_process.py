"""One process: actor and learner take turns. Needs neither Launchpad nor TensorFlow."""

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from distrl.checkpointing.generations import ClockGenerations, Generations, when_all
from distrl.checkpointing.resume_point import ResumePoint, monitor_states
from distrl.errors import Stopped
from distrl.experiment import Experiment
from distrl.goal import joined
from distrl.learner_group.group import LearnerGroup, SingleProcessGroup
from distrl.metrics.reports import Report
from distrl.population import Evolution
from distrl.programs.running.evaluating import EvaluationTurns
from distrl.programs.running.population import LocalMember, make_evolution
from distrl.programs.running.update_wait import UpdateWait
from distrl.programs.single_process_parts import SingleProcess, make_builders, nodes_of
from distrl.programs.single_process_task import TaskRun
from distrl.runtime import start_up
from distrl.runtime.lives import next_life
from distrl.runtime.time_account import OTHER, in_state

_REPORT_S = 0.2  # between two reports while it only acts
_LOGS_S = 1.0  # between two reports with the learner's logs


def single_process(
    experiment: Experiment,
    *,
    stop: threading.Event,
    run_dir: Path | None = None,
    printer: Callable[[str], None] = print,
    resume_point: ResumePoint | None = None,
    give_up: Callable[[], None] = lambda: None,
    join: Callable[[], LearnerGroup] = SingleProcessGroup,
) -> tuple[str, bool] | None:
    """Trains until the goal, or until `stop` is set.

    Args:
      experiment: what to train.
      stop: set from outside, e.g. by a thread that handles signals, to end the run.
      run_dir: where metrics, checkpoints and final parameters are written; None: nowhere.
      printer: takes lines of progress.
      resume_point: the checkpoint to resume from; None: start from scratch.
      give_up: called in another thread when `stop` was set and everything is saved, and this call
        does not return: it compiles, say, or waits for a step of an environment.
      join: connects to the learner's other processes.

    Returns:
      The reason for the end, and whether the goal was reached; None if stopped from outside, or by
      another process of the learner.

    Raises:
      SaveError: the last checkpoint or `params.npz` could not be saved.
    """
    start_up.begin("imports and settings")
    start = resume_point or ResumePoint()
    life = 0 if run_dir is None else next_life(run_dir, *nodes_of(experiment))
    folders = {
        name: None if run_dir is None else experiment.task_dir(run_dir, name)
        for name in experiment.tasks
    }
    builders = make_builders(experiment, printer)
    runs = {name: TaskRun(builders[name], folder, life) for name, folder in folders.items()}
    parts = SingleProcess(
        experiment, stop, printer, resume_point=start, life=life, join=join, builders=builders
    )
    training = _Training(experiment, parts, runs, printer)
    states, give_up = monitor_states(start, runs), when_all(len(runs), give_up)
    generations: Generations | None = None
    if len(runs) > 1:
        generations = ClockGenerations(start.last_generation, experiment.checkpoint.period)
    with contextlib.ExitStack() as opened:
        opened.enter_context(parts)
        for name, run in runs.items():
            opened.enter_context(contextlib.closing(run.monitor))
            part, state = parts.tasks[name], states.get(name)
            run.start(part, parts.actor, run_dir, start, give_up, stop, state, generations)

            def close(_: Any, error: BaseException | None, __: Any, run: TaskRun = run) -> None:
                run.close(error, printer)

            opened.push(close)
        evolution = training.make_evolution(run_dir)

        def report_last(_: Any, error: BaseException | None, __: Any) -> None:
            if error is not None:  # it may have come before the report of an update, or of steps
                training.report(failed=True)

        opened.push(report_last)
        training.run(stop, evolution)
        for part in parts.tasks.values():
            part.learner.leave()
        training.report(logs=True)
        training.finish_evaluation(stop)
    endings = {name: run.ending for name, run in runs.items() if run.ending is not None}
    return joined(endings) if len(endings) == len(runs) else None


class _Training:
    """Acts, learns and evaluates in turns, and reports to the tasks' monitors what was done."""

    def __init__(
        self,
        experiment: Experiment,
        parts: SingleProcess,
        runs: Mapping[str, TaskRun],
        printer: Callable[[str], None],
    ) -> None:
        self._experiment, self._parts = experiment, parts
        self._runs, self._printer = runs, printer
        self._monitor = next(iter(runs.values())).monitor
        self._logs_due = self._report_due = 0.0
        self._turns: EvaluationTurns | None = None
        if parts.evaluator is not None:
            self._turns = EvaluationTurns(parts.evaluator, experiment.evaluator.interval)

    def make_evolution(self, run_dir: Path | None) -> Evolution | None:
        """Returns the `Evolution` that compares the members of the population, if there is one."""
        if self._experiment.population is None:
            return None
        tasks = self._parts.tasks
        members = {n: LocalMember(tasks[n].learner, run.monitor) for n, run in self._runs.items()}
        versions = {name: part.learner.version for name, part in tasks.items()}
        return make_evolution(self._experiment, members, run_dir, self._printer, versions)

    def run(self, stop: threading.Event, evolution: Evolution | None) -> None:
        """Trains until all tasks have ended, or until `stop` is set."""
        waiting = UpdateWait(self._parts.actor, self._printer)
        has_budget = self._experiment.goal.acting_budget != (None, None)

        def may_act() -> bool:
            if stop.is_set():
                raise Stopped("the program stops while the actor acts")
            now = time.monotonic()
            waiting.note(now)
            if now >= self._report_due:
                with in_state(OTHER):
                    self.report(acting=True)
                    self._check()
            return not has_budget or self._within_budget()

        while not stop.is_set() and not all(run.ending for run in self._runs.values()):
            try:
                learned = self._parts.run_once(may_act)
            except Stopped:  # in `may_act`, a wait of the replay, or another learner process
                break
            waiting.restart()
            line = start_up.take_line("first update") if learned else None
            if line is not None:
                self._printer(line)
            # Each update that may end the run is judged, so that it ends at the same one each time;
            # the logs, which cost more, are only read in intervals of time.
            logs = learned and time.monotonic() >= self._logs_due
            if logs:
                self._logs_due = time.monotonic() + _LOGS_S
            self.report(spent=not learned, logs=logs)
            if self._turns is not None:
                self._report_evaluation(self._turns.run(stop.is_set))
            if evolution is not None:
                evolution.run_once()
            self._check()

    def _check(self) -> None:
        for run in self._runs.values():
            run.check()

    def _within_budget(self) -> bool:
        """Returns whether the actor may step once more, given also its unreported steps."""
        steps, episodes = self._parts.actor.unreported
        monitor = self._monitor
        max_env_steps, max_episodes = self._experiment.goal.acting_budget
        return (max_env_steps is None or monitor.acted + steps < max_env_steps) and (
            max_episodes is None or monitor.episodes + episodes < max_episodes
        )

    def report(self, **flags: bool) -> None:
        """Reports what was acted and learned. Args: flags: see `TaskRun.report_counts`."""
        self._report_due = time.monotonic() + _REPORT_S
        acted, single = self._parts.actor.take_report(), self._experiment.assignment is None
        if single and len(self._runs) == 1:  # at once, as it is made after each update
            for run in self._runs.values():
                run.report_counts(acted, **flags)
            return
        with contextlib.ExitStack() as reports:  # all are made, also if one fails
            for name, run in reversed(list(self._runs.items())):
                acted_for_task = acted if single else acted[self._experiment.actor_of(name)]
                reports.callback(run.report_counts, acted_for_task, **flags)

    def finish_evaluation(self, stop: threading.Event) -> None:
        """Plays the evaluation that has begun to its end, unless `stop` is set, and reports it."""
        if self._turns is not None:
            self._report_evaluation(self._turns.finish(stop.is_set))

    def _report_evaluation(self, scores: dict[str, Report]) -> None:
        for name, report in scores.items():
            self._runs[name].report(report)
            self._parts.tasks[name].builder.callbacks.evaluated(report)
