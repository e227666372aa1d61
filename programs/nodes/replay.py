"""The replay: a table in shared memory, or Reverb servers with one shard each."""

from pathlib import Path

from distrl.checkpointing.resume_point import ResumePoint, note_resumed, table_counts
from distrl.experiment import Experiment
from distrl.programs.build import Builder
from distrl.programs.groups import REPLAY
from distrl.programs.nodes.process import owner_of_files
from distrl.programs.nodes.time_reports import TimeReports, account_of_process
from distrl.programs.program import ExperimentProgram, NodeHandle
from distrl.programs.replay_clients import ReplayHandle
from distrl.programs.substrate import here
from distrl.replay.shared.table import SharedTable
from distrl.runtime.heartbeat import current_heartbeat
from distrl.runtime.late_import import without
from distrl.shared_memory import segment
from distrl.task import Task


def add_replay(program: ExperimentProgram, task: Task, monitor: NodeHandle) -> ReplayHandle:
    """Adds the table of a task, whose nodes tell the monitor what their time goes to."""
    first = len(program.program.groups.get(REPLAY.name, ()))
    table = f"{task.name}-{program.unique_name}"
    resume_point = program.resume_point.of_task(task.name)
    run_dir = str(program.experiment.task_dir(Path(program.run_dir), task.name))
    if task.replay.backend == "reverb":
        with without("pandas"):  # TensorFlow's Keras imports it where it exists: half a second
            from distrl.programs.nodes.reverb_replay import reverb_node

        servers = tuple(
            program.add_node(
                REPLAY,
                reverb_node(
                    task,
                    table,
                    run_dir,
                    resume_point,
                    index,
                    (monitor, task.name, f"{REPLAY.name}/{first + index}"),
                ),
                calls=monitor,
            ).client
            for index in range(task.replay.num_shards)
        )
        return ReplayHandle(table, servers)
    SharedTable.check_room(task.trajectory_struct(), task.replay, task.learner.batch_size, table)
    program.add_courier_node(
        REPLAY,
        TableNode,
        task.name,
        table,
        run_dir,
        resume_point,
        monitor,
        f"{REPLAY.name}/{first}",
    )
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
        monitor: NodeHandle,
        name: str,
    ):
        """Args:
        experiment: what to train.
        task: name of the task.
        table: name of the table.
        run_dir: the run folder.
        resume_point: the checkpoint to resume from, if any.
        monitor: takes reports.
        name: of the node.
        """
        self._stop = here.stop_event()
        self._about = monitor, task, name
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
            owner=owner_of_files(),
        )
        if resume_point.checkpoint is not None:
            note_resumed(run_dir, "table", table_counts(self._table.info()))

    def info(self) -> str:
        """Returns counts, limits, and which clients have been blocked since when."""
        return str(self._table.info())

    def run(self) -> None:
        """Keeps the table until the program stops."""
        TimeReports(*self._about, account_of_process()).send_until(self._stop)
        self._table.close()
