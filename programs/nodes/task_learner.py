"""What a learner's node has for each of its tasks: learner, parameter service, checkpointer."""

import dataclasses
import functools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax

from distrl.checkpointing.resume_point import (
    ResumePoint,
    note_resumed,
    restore_learner,
    table_counts,
)
from distrl.checkpointing.store import MANIFEST
from distrl.config import CheckpointConfig
from distrl.errors import PeerError
from distrl.learner import Learner
from distrl.learner_group.devices import check_gpus
from distrl.metrics.reports import SPENT, Report
from distrl.multi_agent.learner_turns import Turn
from distrl.programs.build import Builder, print_line
from distrl.programs.groups import ACTOR, INFERENCER, learner_name
from distrl.programs.nodes.process import owner_of_files, stops_in_order
from distrl.programs.program import NodeHandle
from distrl.programs.remote import Reporter
from distrl.programs.replay_clients import ReplayHandle, learner_client, server_folder
from distrl.programs.running.acting_budget import ActingWatch, has_budget
from distrl.programs.running.gradient_workers import split_update
from distrl.programs.running.progress import gone_nodes, patience, steps_of
from distrl.programs.running.save_generations import RemoteGenerations
from distrl.programs.running.saving import make_checkpointer
from distrl.programs.substrate import node_context
from distrl.replay.shared.buffer import SharedReplayBuffer
from distrl.rounds.clients import RoundReader
from distrl.rounds.collection import CollectionRounds
from distrl.runtime import start_up
from distrl.runtime.early_deadline import call_again_if_early
from distrl.runtime.heartbeat import current_heartbeat
from distrl.runtime.time_account import current_account
from distrl.shared_memory.board import Board
from distrl.shared_memory.published import PublishedVersions
from distrl.sharing.learner import Sharing
from distrl.variables.service import VariableService

_COUNTERS_S = 5.0  # for the monitor to give its state, and a quarter of the grace time at most
_GRACE_AT_ONCE_S = 6.0  # to save where all nodes are stopped at once, and killed 10 s later


class LearnerSetup(NamedTuple):
    """What all learners' nodes of a program are made with.

    Attributes:
      run_dir: the run folder.
      monitor: takes reports, and gives counters for checkpoints.
      resume_point: the checkpoint to resume from, if any.
      acted_before: environment steps of the run's earlier programs.
      gradient_workers: all gradient workers of the program.
      unique_name: the program's unique name; "": parameters are served as bytes only.
    """

    run_dir: str
    monitor: NodeHandle
    resume_point: ResumePoint
    acted_before: int = 0
    gradient_workers: tuple[NodeHandle, ...] = ()
    unique_name: str = ""


class TaskLearner:
    """What the learner's node has for one task.

    Attributes:
      task: the task.
      learner: its learner.
      turn: what the learner needs to run.
      patience: limit of a wait for a batch.
      variables: serves its parameters.
      reporter: sends its reports.
      checkpointer: saves it.
    """

    def __init__(
        self,
        builder: Builder,
        sharing: Sharing,
        replay: ReplayHandle,
        setup: LearnerSetup,
        give_up: Callable[[], None],
    ):
        """Args:
        builder: the task's builder.
        sharing: what the node's tasks share.
        replay: the task's table.
        setup: what all learners of the program have in common.
        give_up: see `Checkpointer`.
        """
        self._stop = node_context.stop_event()
        self.task, experiment = builder.task, builder.experiment
        task, num_gpus = self.task.name, self.task.learner.num_gpus
        self._run_dir = experiment.task_dir(Path(setup.run_dir), task)
        check_gpus(num_gpus, f"learner.num_gpus={num_gpus}")
        self._replay = learner_client(builder, replay, self._stop)
        self._monitor = setup.monitor
        self.reporter = Reporter(setup.monitor, task, learner_name(experiment, task))
        self._acted_before, self._steps_of_actors = setup.acted_before, steps_of(ACTOR.name)
        checkpoint = _checkpoint_config(experiment.checkpoint)
        self._counters_timeout = min(_COUNTERS_S, checkpoint.grace / 4)
        self._call_timeout = experiment.supervision.call_timeout
        self._callbacks = builder.callbacks
        self._callbacks.end = self._end
        self._evaluations = 0  # number of the last one that was passed to the callbacks
        self.patience = patience(
            self.task.learner.timeout, ACTOR.name, INFERENCER.name, task=self.task
        )
        self._collection = builder.make_rounds(current_heartbeat().life, gone_nodes(ACTOR.name))
        self._split_update = split_update(
            builder, setup.gradient_workers, setup.monitor, self._stop
        )
        self.turn = self._make_turn(builder, sharing)
        self.learner = self.turn.learner
        resume_point = self._resume_point(setup.resume_point.of_task(task))
        if resume_point.checkpoint is not None:
            self._resume(resume_point)
        self._first_version = self.learner.version
        self.learner.compile_ahead(builder.task.batch_struct(builder.struct))
        self.variables = _serve_variables(self.learner, builder, setup.unique_name)
        self.checkpointer = make_checkpointer(
            builder,
            Path(setup.run_dir),
            self.learner,
            self._replay,
            self._counters,
            resume_point,
            give_up,
            checkpoint,
            self._generations(len(experiment.tasks), resume_point),
            self._least_counts,
            current_heartbeat().life,
        )
        self.checkpointer.start(self._stop)

    def _make_turn(self, builder: Builder, sharing: Sharing) -> Turn:
        """Makes the learner, and what it needs to run. Arguments as for `__init__`."""
        scheduled = builder.scheduled_reader(self._replay)
        reader, rounds = scheduled, self._collection
        if rounds is not None:
            reader = in_rounds = RoundReader(scheduled, rounds, self._stop)
        learner = builder.make_learner(
            reader, timeout=self.patience, sharing=sharing, split_update=self._split_update
        )
        if rounds is not None:
            in_rounds.version = lambda: learner.version
        acting_over: Callable[[], bool] | None = None
        if has_budget(self.task.goal):
            acting_over = ActingWatch(self._monitor, self.task.name, scheduled)
        flush = functools.partial(self.reporter.flush, self._call_timeout)
        return Turn(self.task.name, learner, self._report, acting_over, flush)

    def _resume_point(self, of_program: ResumePoint) -> ResumePoint:
        """Returns the point to resume from in this life of the node.

        Args:
          of_program: the point from which the program has resumed the task.
        """
        if not current_heartbeat().restarted:
            return of_program
        latest = ResumePoint.latest(self._run_dir, of_program)
        print_line(f"resuming from {latest.checkpoint or 'scratch: no checkpoint yet'}")
        return latest._replace(with_table=False)  # the table was in use meanwhile

    def _generations(self, num_tasks: int, resume_point: ResumePoint) -> RemoteGenerations | None:
        """Returns the numbering of several tasks' checkpoint generations; None: one task."""
        if num_tasks == 1:
            return None
        before = None if current_heartbeat().restarted else resume_point.last_generation
        return RemoteGenerations(self._monitor, before, self._counters_timeout)

    def _resume(self, resume_point: ResumePoint) -> None:
        assert resume_point.checkpoint is not None
        checkpoint, table = Path(resume_point.checkpoint), resume_point.table()
        inserts = None if table is not None else self._replay.info().inserts
        note_resumed(self._run_dir, "learner", restore_learner(self.learner, checkpoint, inserts))
        if self._collection is not None:
            manifest = resume_point.manifest() or {}
            self._collection.restore(manifest["monitor"]["learner"])
        if table is None:
            return
        if isinstance(self._replay, SharedReplayBuffer):
            self._replay.restore_rng(table)
            return
        loaded = table_counts(self._replay.info())  # actors may have inserted already
        saved = json.loads((checkpoint / MANIFEST).read_text())["table"]
        if loaded["inserts"] < saved["inserts"]:
            raise RuntimeError(f"the replay's server has not loaded {table}: {loaded}, not {saved}")
        note_resumed(self._run_dir, "table", loaded)
        if self.task.replay.backend != "reverb":
            return
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
        return json.loads(self._ask("state", self._counters_timeout))

    def _ask(self, method: str, timeout: float, *args: Any) -> Any:
        """Returns what the monitor answers about the task within `timeout` seconds."""
        call = getattr(self._monitor.client.futures, method)
        try:
            return call_again_if_early(
                lambda: call(self.task.name, *args).result(timeout), self._monitor.timeout
            )
        except Exception as error:
            raise PeerError(f"{self._monitor.name}.{method}() failed: {error!r}") from error

    def _end(self, reason: str) -> None:
        """Ends the task; a program that stops ends it anyway."""
        if not self._stop.is_set():
            self._ask("end_task", self._call_timeout, reason)

    def _hear_evaluations(self, timeout: float) -> None:
        """Passes on the evaluations that the callbacks have not had yet."""
        for number, scores in self._ask("evaluations_after", timeout, self._evaluations):
            self._evaluations = number
            self._callbacks.evaluated(scores)

    def hear_last_evaluations(self) -> None:
        """Passes on the evaluations that are left, when the evaluator has ended."""
        if not (self._callbacks and self.task.evaluator.num_evaluators):
            return
        try:
            self._hear_evaluations(self._counters_timeout)
        except PeerError as error:  # saving matters more
            print_line(f"distrl: callbacks do not get the last evaluations: {error}")

    def _least_counts(self) -> dict[str, int]:
        """See `at_least` of `Checkpointer`.

        Actors count each step where a crash of theirs, or the monitor's, does not lose it.
        """
        _, heard = self.reporter.answer
        acted = self._acted_before + self._steps_of_actors()
        return {**heard, "env_steps_acted": max(heard.get("env_steps_acted", 0), acted)}

    def report_spent(self) -> None:
        """Reports that the actors' budget is spent, and nothing is left to learn from."""
        self.reporter({**self.learner.counts(), SPENT: self.task.goal.acting_budget})

    def save_with_totals(self) -> None:
        """Sends the totals and saves, after a failure that came before their report."""
        try:
            self.reporter(self.learner.counts())
            self.reporter.close(self._counters_timeout)
        finally:  # also if the monitor has failed
            self.checkpointer.close()

    def close(self) -> None:
        """Sends the last reports, and saves."""
        self.reporter.close(self._counters_timeout)
        self.checkpointer.close()
        self._replay.close()
        self.variables.close()
        if self._split_update is not None:
            self._split_update.close()

    def _report(self, report: Report) -> None:
        self.checkpointer.check()
        if self.learner.version > self._first_version:
            line = start_up.take_line("first update")
            if line is not None:
                print_line(line)
        if self._collection is not None:
            report.update(self._collection.counts())
        if isinstance(self._replay, SharedReplayBuffer):
            report["table_size"] = self._replay.info().size
        self.reporter({**report, "time": current_account().totals()})
        number, _ = self.reporter.answer
        if self._callbacks and number > self._evaluations:
            self._hear_evaluations(self._call_timeout)
            self._evaluations = max(self._evaluations, number)  # an earlier life has had more


def _checkpoint_config(config: CheckpointConfig) -> CheckpointConfig:
    """Returns when to save, with the grace time that the launcher gives."""
    if stops_in_order():
        return config
    return dataclasses.replace(config, grace=min(config.grace, _GRACE_AT_ONCE_S))


def _serve_variables(learner: Learner, builder: Builder, unique_name: str) -> VariableService:
    """Returns the service of a learner's parameters. Args: unique_name: see `LearnerSetup`."""
    files: PublishedVersions | None = None
    make_board: Callable[[int], Board | None] | None = None
    if unique_name:
        name = f"{builder.task.name}-{unique_name}-parameters"
        files = PublishedVersions(name, owner_of_files())
        if jax.default_backend() == "cpu":  # else each update would be waited for
            make_board = functools.partial(Board.create, name, owner_of_files())
    return VariableService(learner, builder.agent, files, make_board)
