"""The learner of a task, or of several, with their parameters as a service."""

import dataclasses
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import launchpad as lp

from distrl.checkpointing.resume_point import (
    ResumePoint,
    note_resumed,
    restore_learner,
    table_counts,
)
from distrl.checkpointing.rounds import when_all
from distrl.errors import PeerError
from distrl.experiment import Experiment
from distrl.learner_group.devices import check_gpus
from distrl.metrics import SPENT, Report
from distrl.programs.acting_budget import ActingWatch, has_budget
from distrl.programs.build import Builder, make_sharing, print_line
from distrl.programs.gradient_workers import split_update
from distrl.programs.groups import ACTOR, INFERENCER, LEARNER
from distrl.programs.nodes.process import configure_jax, has_own_process, leave, stops_in_order
from distrl.programs.population import MemberCalls
from distrl.programs.program import ExperimentProgram, NodeHandle
from distrl.programs.progress import patience
from distrl.programs.remote import Reporter, stop_and_tick
from distrl.programs.replay_clients import ReplayHandle, learner_client, server_folder
from distrl.programs.save_rounds import RemoteRounds
from distrl.replay.shared.buffer import SharedReplayBuffer
from distrl.round_clients import RoundReader
from distrl.rounds import CollectionRounds
from distrl.runtime.early_deadline import call_again_if_early
from distrl.runtime.heartbeat import current_heartbeat
from distrl.sharing.learner import Sharing
from distrl.turns import Turn, run_in_turn
from distrl.variables import VariableService

_COUNTERS_S = 5.0  # for the monitor to give its state, and a quarter of the grace time at most
_GRACE_AT_ONCE_S = 6.0  # to save where all nodes are stopped at once, and killed 10 s later


def add_learners(
    program: ExperimentProgram,
    replay: Mapping[str, ReplayHandle],
    monitor: NodeHandle,
    gradient_workers: Sequence[NodeHandle],
) -> dict[str, NodeHandle]:
    """Adds the learners of all tasks. Returns by task the node that learns it.

    Args:
      program: the program.
      replay: the tables by task.
      monitor: takes reports, and gives counters for checkpoints.
      gradient_workers: all of the program.
    """
    learners = {}
    for tasks in program.experiment.learner_nodes:
        node = program.add_courier_node(
            LEARNER,
            LearnerNode,
            tasks,
            program.run_dir,
            {task: replay[task] for task in tasks},
            monitor,
            program.resume_point,
            list(gradient_workers),
        )
        learners.update(dict.fromkeys(tasks, node))
    return learners


class LearnerNode(MemberCalls):
    """Learns, saves checkpoints, and serves the parameters."""

    def __init__(
        self,
        experiment: Experiment,
        tasks: Sequence[str],
        run_dir: str,
        replay: Mapping[str, ReplayHandle],
        monitor: NodeHandle,
        resume_point: ResumePoint,
        gradient_workers: Sequence[NodeHandle] = (),
    ):
        """Args:
        experiment: what to train.
        tasks: names of the tasks.
        run_dir: the run folder.
        replay: the tables by task.
        monitor: takes reports, and gives counters for checkpoints.
        resume_point: the checkpoint to resume from, if any.
        gradient_workers: all that may compute for its tasks.
        """
        configure_jax()
        self._stop = lp.stop_event()
        self._call_timeout = experiment.supervision.call_timeout
        builders = {task: Builder(experiment, task) for task in tasks}
        sharing = make_sharing(builders)
        give_up = when_all(len(tasks), leave if has_own_process() else lambda: None)
        self._tasks = {
            task: _TaskLearner(
                builder,
                sharing,
                run_dir,
                replay[task],
                monitor,
                resume_point.of_task(task),
                give_up,
                gradient_workers,
            )
            for task, builder in builders.items()
        }
        self.serve_members(experiment, self._tasks)

    def get_variables(self, newer_than: int, task: str) -> tuple[int, bytes] | None:
        """See `VariableService.get_variables`."""
        return self._tasks[task].variables.get_variables(newer_than)

    def get_variables_at(self, number: int, task: str) -> tuple[int, bytes] | None:
        """See `VariableService.get_variables_at`."""
        return self._tasks[task].variables.get_variables_at(number)

    def join_round(self, task: str, *args: Any) -> tuple[int, int] | None:
        """See `CollectionRounds.join`."""
        return self._tasks[task].collection.join(*args)

    def offer_unrolls(self, task: str, *args: Any) -> bool:
        """See `CollectionRounds.offer`."""
        return self._tasks[task].collection.offer(*args)

    def deliver_unrolls(self, task: str, *args: Any) -> None:
        """See `CollectionRounds.deliver`."""
        self._tasks[task].collection.deliver(*args)

    def leave_rounds(self, task: str, *args: Any) -> None:
        """See `CollectionRounds.leave`."""
        self._tasks[task].collection.leave(*args)

    def run(self) -> None:
        """Learns until the program stops, then saves the parameters and a checkpoint."""
        tasks = self._tasks.values()
        try:
            for task in self._learn():
                self._tasks[task].report_spent()
        except PeerError as error:
            if not self._stop.is_set():
                self._abandon()
                raise
            print_line(f"distrl: the last reports are lost: {error}")  # saving matters more
        except BaseException:
            self._abandon()
            raise
        if not self._stop.is_set():  # after its last update: the goal depends on hearing of it
            for part in tasks:
                part.reporter.flush(self._call_timeout)
        current_heartbeat().wait()
        self._stop.wait()
        for part in tasks:
            part.close()

    def _learn(self) -> Sequence[str]:
        """Learns until the program stops, or all have learned; returns the tasks used up."""
        parts = list(self._tasks.values())
        if len(parts) > 1:
            longest = max(parts, key=lambda part: part.task.learner.timeout)
            return run_in_turn([part.turn for part in parts], self._stop, longest.patience)
        stop, turn = stop_and_tick(self._stop), parts[0].turn
        used_up = turn.learner.run(stop, turn.report, acting_over=turn.acting_over)
        return [turn.name] if used_up else []

    def _abandon(self) -> None:
        for part in self._tasks.values():
            part.checkpointer.abandon()


class _TaskLearner:
    """What the learner's node has for one task.

    Attributes:
      task: the task.
      turn: its learner, and what that needs to run.
      patience: limit of a wait for a batch.
      variables: serves its parameters.
      reporter: sends its reports.
      checkpointer: saves it.
    """

    def __init__(
        self,
        builder: Builder,
        sharing: Sharing,
        run_dir: str,
        replay: ReplayHandle,
        monitor: NodeHandle,
        resume_point: ResumePoint,
        give_up: Callable[[], None],
        gradient_workers: Sequence[NodeHandle],
    ):
        """Args:
        builder: of the task.
        sharing: what the node's tasks share.
        run_dir: the run folder.
        replay: the task's table.
        monitor: takes reports, and gives counters for checkpoints.
        resume_point: the task's checkpoint to resume from, if any.
        give_up: see `Checkpointer`.
        gradient_workers: all that may compute for it.
        """
        self._stop = lp.stop_event()
        self.task, experiment = builder.task, builder.experiment
        task = self.task.name
        self._run_dir = experiment.task_dir(Path(run_dir), task)
        num_gpus = self.task.learner.num_gpus
        check_gpus(num_gpus, f"learner.num_gpus={num_gpus}")
        self._replay = learner_client(builder, replay, self._stop)
        self._monitor = monitor
        self.reporter = Reporter(monitor, task, f"learner/{self.task.index}")
        checkpoint = experiment.checkpoint
        if not stops_in_order():
            grace = min(checkpoint.grace, _GRACE_AT_ONCE_S)
            checkpoint = dataclasses.replace(checkpoint, grace=grace)
        self._counters_timeout = min(_COUNTERS_S, checkpoint.grace / 4)
        reader = builder.scheduled_reader(self._replay)
        self.patience = patience(
            self.task.learner.timeout, ACTOR.name, INFERENCER.name, task=self.task
        )
        collection = self._collection = builder.make_rounds(current_heartbeat().life)
        collector = None if collection is None else RoundReader(reader, collection, self._stop)
        self._split_update = split_update(builder, gradient_workers, monitor, self._stop)
        self._learner = builder.make_learner(
            collector or reader,
            timeout=self.patience,
            sharing=sharing,
            split_update=self._split_update,
        )
        if collector is not None:
            collector.version = lambda: self._learner.version
        acting_over: Callable[[], bool] | None = None
        if has_budget(self.task.goal):
            acting_over = ActingWatch(monitor, task, reader)
        self.turn = Turn(task, self._learner, self._report, acting_over)
        if current_heartbeat().restarted:  # the table was in use meanwhile
            resume_point = ResumePoint.latest(self._run_dir, resume_point)._replace(
                with_table=False
            )
            print_line(f"resuming from {resume_point.checkpoint or 'scratch: no checkpoint yet'}")
        if resume_point.checkpoint is not None:
            self._resume(resume_point)
        self.variables = VariableService(self._learner, builder.agent)
        rounds: RemoteRounds | None = None
        if len(experiment.tasks) > 1:
            rounds = RemoteRounds(monitor, resume_point.last_round, self._counters_timeout)
        self.checkpointer = builder.make_checkpointer(
            Path(run_dir),
            self._learner,
            self._replay,
            self._counters,
            resume_point,
            give_up,
            checkpoint,
            rounds,
        )
        self.checkpointer.start(self._stop)

    def _resume(self, resume_point: ResumePoint) -> None:
        assert resume_point.checkpoint is not None
        checkpoint, table = Path(resume_point.checkpoint), resume_point.table()
        note_resumed(self._run_dir, "learner", restore_learner(self._learner, checkpoint))
        if self._collection is not None:
            manifest = resume_point.manifest() or {}
            self._collection.restore(manifest["monitor"]["learner"])
        if table is None:
            return
        if isinstance(self._replay, SharedReplayBuffer):
            self._replay.restore_rng(table)
            return
        loaded = table_counts(self._replay.info())  # actors may have inserted already
        saved = json.loads((checkpoint / "manifest.json").read_text())["table"]
        if loaded["inserts"] < saved["inserts"]:
            raise RuntimeError(f"the Reverb server has not loaded {table}: {loaded}, not {saved}")
        note_resumed(self._run_dir, "table", loaded)
        from distrl.replay.reverb.checkpoints import copy_of

        for index in range(self.task.replay.num_shards):
            copy = copy_of(server_folder(self.task, self._run_dir, index))
            shutil.rmtree(copy, ignore_errors=True)

    @property
    def collection(self) -> CollectionRounds:
        """The rounds of an experiment that has them."""
        assert self._collection is not None
        return self._collection

    def _counters(self) -> dict[str, Any]:
        """Returns the monitor's state."""
        try:
            futures = self._monitor.client.futures
            state = call_again_if_early(
                lambda: futures.state(self.task.name).result(self._counters_timeout),
                self._monitor.timeout,
            )
            return json.loads(state)
        except Exception as error:
            raise PeerError(f"{self._monitor.name}.state() failed: {error!r}") from error

    def report_spent(self) -> None:
        """Reports that the actors' budget is spent, and nothing is left to learn from."""
        self.reporter({**self._learner.counts(), SPENT: self.task.goal.acting_budget})

    def close(self) -> None:
        """Sends the last reports, and saves."""
        try:
            self.reporter.flush()
        except PeerError as error:
            print_line(f"distrl: the last reports are lost: {error}")
        self.checkpointer.close()
        self._replay.close()
        if self._split_update is not None:
            self._split_update.close()

    def _report(self, report: Report) -> None:
        self.checkpointer.check()
        if self._collection is not None:
            report.update(self._collection.counts())
        self.reporter(report)
