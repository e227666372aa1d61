"""The replay: a table in shared memory, or Reverb servers with one shard each."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import launchpad as lp

from distrl.checkpointing.resume_point import ResumePoint, note_resumed, table_counts
from distrl.experiment import Experiment
from distrl.programs.build import Builder
from distrl.programs.groups import REPLAY
from distrl.programs.nodes.process import has_own_process
from distrl.programs.program import ExperimentProgram
from distrl.programs.replay_clients import ReplayHandle, saved_shard, server_folder, shard_name
from distrl.replay.shared import segment
from distrl.replay.shared.announce import announced
from distrl.replay.shared.process import Process
from distrl.replay.shared.table import SharedTable
from distrl.runtime.heartbeat import current_heartbeat
from distrl.task import Task


def add_replay(program: ExperimentProgram, task: Task) -> ReplayHandle:
    """Adds the table of a task."""
    table = f"{task.name}-{program.unique_name}"
    resume_point = program.resume_point.of_task(task.name)
    run_dir = str(program.experiment.task_dir(Path(program.run_dir), task.name))
    if task.replay.backend == "reverb":
        servers = tuple(
            program.add_node(REPLAY, _reverb_node(task, table, run_dir, resume_point, index)).client
            for index in range(task.replay.num_shards)
        )
        return ReplayHandle(table, servers)
    SharedTable.check_room(task.trajectory_struct(), task.replay, task.learner.batch_size, table)
    program.add_courier_node(REPLAY, TableNode, task.name, table, run_dir, resume_point)
    return ReplayHandle(table, None)


class TableNode:
    """Owns a table in shared memory, from its creation to its removal."""

    def __init__(
        self,
        experiment: Experiment,
        task: str,
        table: str,
        run_dir: str,
        resume_point: ResumePoint,
    ):
        """Args:
        experiment: what to train.
        task: name of the task.
        table: name of the table.
        run_dir: the run folder.
        resume_point: the checkpoint to resume from, if any.
        """
        self._stop = lp.stop_event()
        if current_heartbeat().restarted and segment.exists(table):
            self._table = SharedTable.adopt(table)  # its clients have used it meanwhile
            return
        builder = Builder(experiment, task)
        self._table = SharedTable.create(
            builder.struct,
            builder.task.replay,
            builder.task.learner.batch_size,
            table,
            builder.seed("replay", builder.task.index),
            saved=resume_point.table(),
            # The launcher owns it: it must outlive this process, which may be restarted.
            owner=Process.parent() if has_own_process() else Process.this(),
        )
        if resume_point.checkpoint is not None:
            note_resumed(run_dir, "table", table_counts(self._table.info()))

    def info(self) -> str:
        """Returns counts, limits, and which clients have been blocked since when."""
        return str(self._table.info())

    def run(self) -> None:
        """Keeps the table until the program stops."""
        self._stop.wait()
        self._table.close()


class _AnnouncedReverbNode(lp.ReverbNode):
    """A Reverb server that `distrl tables` finds."""

    def __init__(
        self, table: str, about: Callable[[str], dict[str, Any]], *args: Callable[[], Any]
    ):
        """Args:
        table: name of the server's table.
        about: from the server's address to what is announced.
        *args: arguments of `lp.ReverbNode`.
        """
        self._table = table
        self._about = about
        super().__init__(*args)

    def run(self) -> None:
        """Serves until the program stops."""
        about = self._about(self.reverb_address.resolve())
        with announced(self._table, about):
            super().run()


def _reverb_node(
    task: Task, table: str, run_dir: str, resume_point: ResumePoint, index: int
) -> _AnnouncedReverbNode:
    """Returns a Reverb server with a task's table, or one shard of it."""
    # With TensorFlow, which takes seconds.
    from distrl.replay.reverb.server import about_tables, reverb_tables

    config, struct = task.replay.of_shard(), task.trajectory_struct()
    name, per_item = shard_name(task, table, index), task.unrolls_per_item
    return _AnnouncedReverbNode(
        name,
        functools.partial(about_tables, config, struct, unrolls_per_item=per_item),
        functools.partial(
            reverb_tables, config, struct, task.shard_batch, name, unrolls_per_item=per_item
        ),
        functools.partial(_reverb_checkpointer, task, name, run_dir, resume_point, index),
    )


def _reverb_checkpointer(
    task: Task, table: str, run_dir: str, resume_point: ResumePoint, index: int
) -> Any:
    """Returns the checkpointer of a server, in its process: it loads what was saved last."""
    from distrl.replay.reverb.checkpoints import checkpointer

    if current_heartbeat().restarted:
        resume_point = ResumePoint.latest(run_dir, resume_point)
    return checkpointer(
        server_folder(task, Path(run_dir).absolute(), index),
        saved_shard(task, resume_point.table(), index),
        table,
        task.trajectory_struct(),
        task.replay.of_shard(),
        task.shard_batch,
        task.unrolls_per_item,
    )
