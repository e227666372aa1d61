"""The replay's table as a node, and clients of it."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import launchpad as lp

from distrl import seeds
from distrl.checkpointing.checkpointer import ResumePoint, note_resumed, table_counts
from distrl.experiment import Experiment
from distrl.programs.remote import COMES_BACK
from distrl.replay.buffer import ReplayBuffer
from distrl.replay.reverb.sharded import ShardedReplayBuffer
from distrl.replay.shared import segment
from distrl.replay.shared.buffer import SharedReplayBuffer
from distrl.replay.shared.segment import Process
from distrl.replay.shared.table import SharedTable
from distrl.runtime.heartbeat import current_heartbeat

_LOAD_S = 600.0  # for a table to be there: it may have many gigabytes to load


def shard_name(experiment: Experiment, table: str, index: int) -> str:
    """Of one shard's table: its own, so that a server of another shard is not taken for it."""
    return f"{table}-{index}" if experiment.replay.num_shards > 1 else table


def server_folder(experiment: Experiment, run_dir: Path, index: int) -> Path:
    """Where a Reverb server writes its checkpoints."""
    return run_dir / (f"replay-{index}" if experiment.replay.num_shards > 1 else "replay")


def saved_shard(experiment: Experiment, saved: Path | None, index: int) -> Path | None:
    """What was saved of one shard. Args: saved: what was saved of the table; None: nothing."""
    return saved / str(index) if saved is not None and experiment.replay.num_shards > 1 else saved


def actor_client(
    experiment: Experiment, servers: Sequence[Any] | None, table: str, stop: Any, actor: int
) -> ReplayBuffer:
    """An actor's client of the table, or of the one shard that it writes to.

    Args:
      experiment: with the table's settings.
      servers: clients of the Reverb servers; None: the table is in shared memory.
      table: name.
      stop: set when the program stops.
      actor: its index.
    """
    if servers is None:
        return _shared_client(experiment, table, stop)
    index = actor % len(servers)
    return _reverb_client(experiment, servers[index], shard_name(experiment, table, index), stop)


def learner_client(
    experiment: Experiment, servers: Sequence[Any] | None, table: str, stop: Any
) -> ReplayBuffer | ShardedReplayBuffer:
    """The learner's client of the table, of all its shards. Arguments as of `actor_client`."""
    if servers is None:
        return _shared_client(experiment, table, stop)
    shards = [
        _reverb_client(experiment, server, shard_name(experiment, table, index), stop)
        for index, server in enumerate(servers)
    ]
    if len(shards) == 1:
        return shards[0]
    return ShardedReplayBuffer(
        shards,
        experiment.replay,
        experiment.learner.batch_size,
        seed=seeds.seed(experiment.seed, "shards", 0),
        stop=stop,
        unrolls_per_item=experiment.only_task.unrolls_per_item,
    )


def _shared_client(experiment: Experiment, table: str, stop: Any) -> ReplayBuffer:
    return SharedReplayBuffer(
        table,
        experiment.trajectory_struct(),
        experiment.replay,
        experiment.learner.batch_size,
        stop,
        experiment.supervision.insert_timeout,
        open_timeout=_LOAD_S,
    )


def _reverb_client(experiment: Experiment, server: Any, table: str, stop: Any) -> Any:
    """A `ReverbReplayBuffer`, of one shard."""
    from distrl.replay.reverb.buffer import ReverbReplayBuffer  # brings TensorFlow

    buffer = ReverbReplayBuffer(
        server,
        experiment.trajectory_struct(),
        experiment.replay.of_shard(),
        experiment.only_task.shard_batch,
        table,
        unrolls_per_item=experiment.only_task.unrolls_per_item,
        stop=stop,
        insert_timeout=experiment.supervision.insert_timeout,
        comes_back_within=COMES_BACK if experiment.supervision.restarts else 0.0,
    )
    buffer.wait_for_server(_LOAD_S)
    return buffer


class TableNode:
    """Owns a table in shared memory, from its making to its removal."""

    def __init__(self, experiment: Experiment, table: str, run_dir: str, start: ResumePoint):
        self._stop = lp.stop_event()
        if current_heartbeat().restarted and segment.exists(table):
            self._table = SharedTable.adopt(table)  # its clients have gone on with it meanwhile
            return
        in_own_process = threading.current_thread() is threading.main_thread()
        self._table = SharedTable.create(
            experiment.trajectory_struct(),
            experiment.replay,
            experiment.learner.batch_size,
            table,
            seeds.seed(experiment.seed, "replay", 0),
            saved=start.table(),
            # The launcher's: it is there as long as the program.
            owner=Process.parent() if in_own_process else Process.this(),
        )
        if start.checkpoint is not None:
            note_resumed(run_dir, "table", table_counts(self._table.info()))

    def info(self) -> str:
        """How the table stands: counts, limits, and who waits since when."""
        return str(self._table.info())

    def run(self) -> None:
        """Keeps the table until the program stops."""
        self._stop.wait()
        self._table.close()
