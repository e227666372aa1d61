"""The learner, with its parameters as a service."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import launchpad as lp

from distrl.checkpointing.resume_point import (
    ResumePoint,
    note_resumed,
    restore_learner,
    table_counts,
)
from distrl.errors import PeerError
from distrl.experiment import Experiment
from distrl.learner_group.devices import check_gpus
from distrl.metrics import SPENT, Report
from distrl.programs.acting_budget import ActingWatch, has_budget
from distrl.programs.build import Builder, print_line
from distrl.programs.groups import ACTOR, INFERENCER, LEARNER
from distrl.programs.nodes.process import configure_jax, has_own_process, leave, stops_in_order
from distrl.programs.program import ExperimentProgram, NodeHandle
from distrl.programs.progress import patience
from distrl.programs.remote import Reporter, stop_and_tick
from distrl.programs.replay_clients import ReplayHandle, learner_client, server_folder
from distrl.replay.shared.buffer import SharedReplayBuffer
from distrl.runtime.early_deadline import call_again_if_early
from distrl.runtime.heartbeat import current_heartbeat
from distrl.task import Task
from distrl.variables import VariableService

_COUNTERS_S = 5.0  # for the monitor to give its state, and a quarter of the grace time at most
_GRACE_AT_ONCE_S = 6.0  # to save where all nodes are stopped at once, and killed 10 s later


def add_learner(
    program: ExperimentProgram, task: Task, replay: ReplayHandle, monitor: NodeHandle
) -> NodeHandle:
    """Adds the learner of a task."""
    return program.add_courier_node(
        LEARNER, LearnerNode, task.name, program.run_dir, replay, monitor, program.resume_point
    )


class LearnerNode:
    """Learns, saves checkpoints, and serves the parameters."""

    def __init__(
        self,
        experiment: Experiment,
        task: str,
        run_dir: str,
        replay: ReplayHandle,
        monitor: NodeHandle,
        resume_point: ResumePoint,
    ):
        """Args:
        experiment: what to train.
        task: name of the task.
        run_dir: the run folder.
        replay: the task's table.
        monitor: takes reports, and gives counters for checkpoints.
        resume_point: the checkpoint to resume from, if any.
        """
        configure_jax()
        self._stop = lp.stop_event()
        self._run_dir = experiment.task_dir(Path(run_dir), task)
        builder = Builder(experiment, task)
        self._task = builder.task
        num_gpus = self._task.learner.num_gpus
        check_gpus(num_gpus, f"learner.num_gpus={num_gpus}")
        self._replay = learner_client(builder, replay, self._stop)
        self._monitor = monitor
        self._reporter = Reporter(monitor, task, f"learner/{self._task.index}")
        self._call_timeout = experiment.supervision.call_timeout
        checkpoint = experiment.checkpoint
        if not stops_in_order():
            grace = min(checkpoint.grace, _GRACE_AT_ONCE_S)
            checkpoint = dataclasses.replace(checkpoint, grace=grace)
        self._counters_timeout = min(_COUNTERS_S, checkpoint.grace / 4)
        reader = builder.scheduled_reader(self._replay)
        self._learner = builder.make_learner(
            reader,
            timeout=patience(
                self._task.learner.timeout, ACTOR.name, INFERENCER.name, task=self._task
            ),
        )
        self._acting_over: ActingWatch | None = None
        if has_budget(self._task.goal):
            self._acting_over = ActingWatch(monitor, task, reader)
        if current_heartbeat().restarted:  # the table was in use meanwhile
            resume_point = ResumePoint.latest(self._run_dir, resume_point)._replace(
                with_table=False
            )
            print_line(f"resuming from {resume_point.checkpoint or 'scratch: no checkpoint yet'}")
        if resume_point.checkpoint is not None:
            self._resume(resume_point)
        self._variables = VariableService(self._learner, builder.agent)
        self._checkpointer = builder.make_checkpointer(
            self._run_dir,
            self._learner,
            self._replay,
            self._counters,
            resume_point,
            leave if has_own_process() else lambda: None,
            checkpoint,
        )
        self._checkpointer.start(self._stop)

    def _resume(self, resume_point: ResumePoint) -> None:
        assert resume_point.checkpoint is not None
        checkpoint, table = Path(resume_point.checkpoint), resume_point.table()
        note_resumed(self._run_dir, "learner", restore_learner(self._learner, checkpoint))
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

        for index in range(self._task.replay.num_shards):
            copy = copy_of(server_folder(self._task, self._run_dir, index))
            shutil.rmtree(copy, ignore_errors=True)

    def _counters(self) -> dict[str, Any]:
        """Returns the monitor's state."""
        try:
            futures = self._monitor.client.futures
            state = call_again_if_early(
                lambda: futures.state(self._task.name).result(self._counters_timeout),
                self._monitor.timeout,
            )
            return json.loads(state)
        except Exception as error:
            raise PeerError(f"{self._monitor.name}.state() failed: {error!r}") from error

    def get_variables(self, newer_than: int) -> tuple[int, bytes] | None:
        """See `VariableService.get_variables`."""
        return self._variables.get_variables(newer_than)

    def get_variables_at(self, number: int) -> tuple[int, bytes] | None:
        """See `VariableService.get_variables_at`."""
        return self._variables.get_variables_at(number)

    def run(self) -> None:
        """Learns until the program stops, then saves the parameters and a checkpoint."""
        try:
            used_up = self._learner.run(
                stop_and_tick(self._stop), self._report, acting_over=self._acting_over
            )
            if used_up:
                self._reporter({**self._learner.counts(), SPENT: self._task.goal.acting_budget})
        except PeerError as error:
            if not self._stop.is_set():
                self._checkpointer.abandon()
                raise
            print_line(f"distrl: the last reports are lost: {error}")  # saving matters more
        except BaseException:
            self._checkpointer.abandon()
            raise
        if not self._stop.is_set():  # after its last update: the goal depends on hearing of it
            self._reporter.flush(self._call_timeout)
        current_heartbeat().wait()
        self._stop.wait()
        try:
            self._reporter.flush()
        except PeerError as error:
            print_line(f"distrl: the last reports are lost: {error}")
        self._checkpointer.close()
        self._replay.close()

    def _report(self, report: Report) -> None:
        self._checkpointer.check()
        self._reporter(report)
