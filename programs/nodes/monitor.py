"""The monitor: adds up reports, shares out the actors' budgets, ends the program at its goals."""

import functools
import inspect
import json
import threading
import time
from pathlib import Path

from distrl.budget import ActingBudget
from distrl.checkpointing.generations import ClockGenerations
from distrl.checkpointing.resume_point import ResumePoint, monitor_states, note_resumed
from distrl.experiment import Experiment
from distrl.goal import joined
from distrl.metrics.reports import Report, first_number
from distrl.programs.build import Builder, print_line
from distrl.programs.groups import ACTOR, MONITOR
from distrl.programs.nodes.process import stops_in_order
from distrl.programs.nodes.time_reports import REPORT_S, account_of_process
from distrl.programs.program import ExperimentProgram, NodeHandle
from distrl.programs.running.gradient_workers import make_allocator
from distrl.programs.substrate import node_context
from distrl.runtime.heartbeat import ABSENT, GONE, LOST, current_heartbeat

_SAVE_S = 3.0  # for the learners to ask for the state, where all nodes are stopped at once


def add_monitor(program: ExperimentProgram) -> NodeHandle:
    """Adds the monitor."""
    return program.add_call_node(MONITOR, MonitorNode, program.run_dir, program.resume_point)


class MonitorNode:
    """Serves a `Monitor` for each task. The program ends when all tasks have ended."""

    def __init__(self, experiment: Experiment, run_dir: str, resume_point: ResumePoint):
        """Args:
        experiment: what to train.
        run_dir: the run folder.
        resume_point: the checkpoint to resume from, if any.
        """
        self._stop = node_context.stop_event()
        self._stopper = node_context.program_stopper()
        self._saved = threading.Condition()  # guards the tasks that are not
        self._unsaved = set(experiment.tasks)
        self._heartbeats = current_heartbeat().table
        self._allocator = make_allocator(experiment)
        self._allocating = threading.Lock()  # guards the allocator and the endings
        self._endings: dict[str, tuple[str, bool]] = {}
        folders = {task: experiment.task_dir(Path(run_dir), task) for task in experiment.tasks}
        self._monitors = {
            task: Builder(experiment, task).make_monitor(functools.partial(self._end, task), folder)
            for task, folder in folders.items()
        }
        if experiment.callbacks:
            for monitor in self._monitors.values():
                monitor.evaluations.keep()
        for task, state in monitor_states(resume_point, experiment.tasks).items():
            monitor = self._monitors[task]
            monitor.restore(state)
            note_resumed(folders[task], "monitor", monitor.state())
        self._generations = ClockGenerations(
            resume_point.last_generation, experiment.checkpoint.period
        )
        counted = next(iter(self._monitors.values()))  # all count the same environments
        self._budget = ActingBudget(
            experiment.goal,
            experiment.actors.num_actors,
            env_steps=counted.acted,
            episodes=counted.episodes,
            fixed=experiment.lockstep,
        )

    def _end(self, task: str, reason: str, reached: bool) -> None:
        """Ends a task, and with the last one the program. Args: see `on_end` of `Monitor`."""
        print_line(f"{task}: {reason}" if len(self._monitors) > 1 else reason)
        with self._allocating:
            self._allocator.end(task)
            self._endings[task] = reason, reached
            if len(self._endings) < len(self._monitors):
                return
        if "reason" in inspect.signature(self._stopper).parameters:
            reason, reached = joined(self._endings)
            self._stopper(reason=reason, finished=reached)
        else:  # Launchpad's own launchers take no reason
            self._stopper()

    def state(self, task: str) -> str:
        """Returns `Monitor.state` of a task, as JSON."""
        self._close_books(task)
        state = json.dumps(self._monitors[task].state())
        with self._saved:
            if self._stop.is_set():
                self._unsaved.discard(task)
                self._saved.notify_all()
        return state

    def save_generation(self, last: bool = False) -> int:
        """Returns the number of the checkpoint generation, as `Generations`."""
        return self._generations.last() if last else self._generations.current()

    def report(
        self, task: str, node: str, number: int, reports: list[Report]
    ) -> tuple[int, dict[str, int]]:
        """See `Monitor.report`. Returns `Evaluations.count`, and counts as in `Monitor.state`."""
        monitor = self._monitors[task]
        monitor.report(node, number, reports)
        counts = {"env_steps_acted": monitor.acted, "episodes": monitor.episodes}
        return monitor.evaluations.count, counts

    def evaluations_after(self, task: str, number: int) -> list[tuple[int, Report]]:
        """See `Evaluations.after`."""
        return self._monitors[task].evaluations_after(number)

    def end_task(self, task: str, reason: str) -> None:
        """See `Monitor.end`."""
        self._monitors[task].end(reason)

    def begin_life(self, actor: str, life: int, acted: int) -> int:
        """Returns the environment steps of an actor's earlier lives; makes all tasks count them.

        Args:
          actor: its name.
          life: the life that begins.
          acted: these steps as far as the launcher knows: all of them, unless their host was lost.
        """
        acted = max(acted, self._budget.acted(actor))
        monitors = list(self._monitors.values())
        for monitor in monitors * 2:  # the second time, for steps that only a later one knew of
            acted = monitor.close_books(actor, life - 1, acted)
            monitor.judge()
        return acted

    def standing(self, task: str) -> tuple[int, int, float | None]:
        """See `Monitor.standing`."""
        return self._monitors[task].standing

    def forget_episodes(self, task: str) -> None:
        """See `Monitor.forget_episodes`."""
        self._monitors[task].forget_episodes()

    def lease(
        self, task: str, actor: str, life: int, counts: tuple[int, int], step: int, wanted: int
    ) -> tuple[int | None, int | None, bool]:
        """Returns, as a `Lease`, until when an actor may act; see `ActingBudget.lease`.

        Args:
          task: the task that it acts for.
          actor: its name.
          life: its life.
          counts: its environment steps in all its lives in this program, and its episodes in this
            life.
          step: see `ActingBudget.lease`.
          wanted: see there.
        """
        reported = self._monitors[task].episodes_by(actor)
        lease = self._budget.lease(actor, life, *counts, step, wanted, reported)
        if not lease.over:
            self._take_back(task)
        return lease.env_steps, lease.episodes, lease.over

    def gradient_workers(self, task: str, busy: float) -> list[int]:
        """Returns the indices of the workers of a task; see `Allocator.report`."""
        with self._allocating:
            now = time.monotonic()
            self._allocator.report(task, busy, now)
            moved = self._allocator.look(now)
            workers = self._allocator.workers(task)
        if moved is not None:
            print_line(moved)
        return workers

    def finish(self, actor: str, rounds: int) -> None:
        """See `ActingBudget.finish`."""
        self._budget.finish(actor, rounds)

    def acting_over(self, task: str) -> tuple[bool, int]:
        """Returns whether acting is over, and the rounds that lockstep completes."""
        budget = self._budget
        self._take_back(task)
        return budget.over, budget.rounds

    def _take_back(self, task: str) -> None:
        """Takes back the leases of actors that were scaled down, or whose host is lost."""
        if self._heartbeats is None:
            return
        for actor in self._budget.unfinished:
            heartbeat = self._heartbeats.of(actor)
            if heartbeat is not None and heartbeat.status in (ABSENT, GONE, LOST):
                reported = self._monitors[task].acted_by(actor)
                self._budget.lose(actor, max(reported, heartbeat.acted))

    def _close_books(self, task: str) -> None:
        """Counts the steps of actors that have ended before the monitor had all their reports."""
        if self._heartbeats is None:
            return
        for actor, heartbeat in self._heartbeats.group(ACTOR.name).items():
            ended = heartbeat.ended
            if ended is not None:
                self._monitors[task].close_books(actor, *ended)

    def run(self) -> None:
        """Waits for the program's end, and notes its own time meanwhile."""
        make_report, number = account_of_process(), first_number(current_heartbeat().life)
        first = next(iter(self._monitors.values()))
        while not self._stop.wait(REPORT_S):
            if make_report is not None:
                first.report(f"{MONITOR.name}/0", number, [make_report()])
                number += 1
        if not stops_in_order():  # the learners' last checkpoints ask for the state now
            with self._saved:
                self._saved.wait_for(lambda: not self._unsaved, _SAVE_S)
        for task, monitor in self._monitors.items():
            self._close_books(task)
            monitor.close()
