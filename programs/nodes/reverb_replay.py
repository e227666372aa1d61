"""Reverb servers as nodes. Importing this module imports TensorFlow."""

import functools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import launchpad as lp

from distrl.checkpointing.resume_point import ResumePoint
from distrl.programs.nodes.time_reports import TimeReports, account_of_process
from distrl.programs.program import NodeHandle
from distrl.programs.replay_clients import saved_shard, server_folder, shard_name
from distrl.replay.reverb.server import about_tables, reverb_tables
from distrl.replay.shared.announce import announced
from distrl.runtime.heartbeat import current_heartbeat
from distrl.task import Task

_JOIN_S = 5.0  # for a report that is being sent


class _AnnouncedReverbNode(lp.ReverbNode):
    """A Reverb server that `distrl tables` finds, and that reports what it spends its time on."""

    def __init__(
        self,
        table: str,
        about: Callable[[str], dict[str, Any]],
        reports: tuple[NodeHandle, str, str],
        *args: Callable[[], Any],
    ):
        """Args:
        table: name of the server's table.
        about: from the server's address to what is announced.
        reports: the monitor, the task, and this node's name.
        *args: arguments of `lp.ReverbNode`.
        """
        self._table = table
        self._about = about
        self._reports = reports
        super().__init__(*args)
        self._input_handles.append(reports[0].client)

    def run(self) -> None:
        """Serves until the program stops."""
        about = self._about(self.reverb_address.resolve())
        monitor, task, name = self._reports
        client = monitor._replace(client=monitor.client.dereference())
        times = TimeReports(client, task, name, account_of_process())
        # In a thread: `lp.ReverbNode` waits in this one.
        reports = threading.Thread(target=times.send_until, args=(lp.stop_event(),), daemon=True)
        with announced(self._table, about):
            reports.start()
            super().run()
        reports.join(_JOIN_S)


def reverb_node(
    task: Task,
    table: str,
    run_dir: str,
    resume_point: ResumePoint,
    index: int,
    reports: tuple[NodeHandle, str, str],
) -> _AnnouncedReverbNode:
    """Returns a Reverb server with a task's table, or one shard of it."""
    config, struct = task.replay.of_shard(), task.trajectory_struct()
    name, per_item = shard_name(task, table, index), task.unrolls_per_item
    return _AnnouncedReverbNode(
        name,
        functools.partial(about_tables, config, struct, unrolls_per_item=per_item),
        reports,
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
