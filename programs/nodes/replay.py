"""The replay: tables in shared memory, served or not, or Reverb servers with one shard each."""

import functools
from pathlib import Path

from distrl.checkpointing.resume_point import ResumePoint, note_resumed, table_counts
from distrl.experiment import Experiment
from distrl.programs.build import Builder
from distrl.programs.groups import REPLAY
from distrl.programs.nodes.process import owner_of_files
from distrl.programs.nodes.time_reports import TimeReports, account_of_process
from distrl.programs.program import ExperimentProgram, FrameEndpoint, NodeHandle
from distrl.programs.replay_clients import (
    ReplayHandle,
    saved_shard,
    shard_name,
)
from distrl.programs.running import shared_files
from distrl.programs.substrate import node_context
from distrl.replay.served.server import TableServer
from distrl.replay.shared.snapshot import restore_rng
from distrl.replay.shared.table import SharedTable
from distrl.runtime.late_import import without
from distrl.shared_memory.segment import TABLE
from distrl.task import Task


def add_replay(program: ExperimentProgram, task: Task, monitor: NodeHandle) -> ReplayHandle:
    """Adds the table of a task, whose nodes report what they spend their time on."""
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
    add = functools.partial(
        program.add_call_node, REPLAY, TableNode, task.name, run_dir, resume_point, monitor
    )
    if task.replay.backend == "served":
        servers = tuple(program.new_frame_endpoint() for _ in range(task.replay.num_shards))
        for shard, served in enumerate(servers):
            add(
                shard_name(task, table, shard),
                f"{REPLAY.name}/{first + shard}",
                shard,
                served,
                endpoints=[served.address],
            )
        return ReplayHandle(table, servers)
    SharedTable.check_room(task.trajectory_struct(), task.replay, task.learner.batch_size, table)
    node = f"{REPLAY.name}/{first}"
    add(table, node)
    return ReplayHandle(table, None, node)


class TableNode:
    """Owns a table in shared memory, or a shard, from its creation to its removal."""

    def __init__(
        self,
        experiment: Experiment,
        task: str,
        run_dir: str,
        resume_point: ResumePoint,
        monitor: NodeHandle,
        table: str,
        name: str,
        shard: int = 0,
        served: FrameEndpoint | None = None,
    ):
        """Args:
        experiment: what to train.
        task: name of the task.
        run_dir: the run folder.
        resume_point: the checkpoint to resume from, if any.
        monitor: takes reports.
        table: name of the table.
        name: the node's name.
        shard: index of the shard.
        served: where and to whom it is served; None: nodes of this machine map it.
        """
        self._stop = node_context.stop_event()
        self._about = monitor, task, name
        self._server: TableServer | None = None
        builder = Builder(experiment, task)
        config, struct = builder.task.replay.of_shard(), builder.struct
        if shared_files.left_by_earlier_life(table, TABLE):
            self._table = SharedTable.adopt(table)  # its clients have used it meanwhile
        else:
            saved = saved_shard(builder.task, resume_point.table(), shard)
            self._table = SharedTable.create(
                struct,
                config,
                builder.task.shard_batch,
                table,
                builder.seed("replay", builder.task.index + shard * len(experiment.tasks)),
                saved=saved,
                # The launcher owns it: it must outlive this process, which may be restarted.
                owner=owner_of_files(),
                schedule=_schedule_of(experiment),
            )
            shared_files.note_made()
            if resume_point.checkpoint is not None and builder.task.replay.num_shards == 1:
                note_resumed(run_dir, "table", table_counts(self._table.info()))
            if saved is not None and served is not None:  # a reader elsewhere samples by its server
                restore_rng(self._table, saved)
        if served is not None:
            address, folder = served.address.resolve(), Path(run_dir)
            self._server = TableServer(self._table, struct, config, address, served.key, folder)

    def info(self) -> str:
        """Returns counts, limits, and which clients have been blocked since when."""
        return str(self._table.info())

    def run(self) -> None:
        """Keeps the table until the program stops."""
        TimeReports(*self._about, account_of_process()).send_until(self._stop)
        if self._server is not None:
            self._server.close()
        self._table.close()


def _schedule_of(experiment: Experiment) -> str:
    """Returns the schedule of the updates, by the name that a table has for it."""
    if experiment.lockstep:
        return "lockstep"
    return "" if experiment.actors.min_actors is None else "rounds"
