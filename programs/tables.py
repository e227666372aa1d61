"""The replay's table as a node, and clients of it."""

import threading
from typing import Any

import launchpad as lp

from distrl import board, seeds
from distrl.checkpointer import Start, note_resumed, table_counts
from distrl.experiment import Experiment
from distrl.replay import shared_file
from distrl.replay.buffer import ReplayBuffer
from distrl.replay.shared_file import Process
from distrl.replay.shared_memory import SharedReplayBuffer
from distrl.replay.shared_table import SharedTable
from programs.peers import COMES_BACK

REVERB_FOLDER = "replay"  # of the run's folder: where a server writes its checkpoints
_LOAD_S = 600.0  # for a table to be there: it may have many gigabytes to load


def replay_client(experiment: Experiment, server: Any, table: str, stop: Any) -> ReplayBuffer:
    """A client of the table: at a Reverb server, or in shared memory where there is none."""
    struct, config = experiment.trajectory_struct(), experiment.replay
    batch_size = experiment.learner.batch_size
    timeout = experiment.supervision.insert_timeout
    if server is None:
        return SharedReplayBuffer(
            table, struct, config, batch_size, stop, timeout, open_timeout=_LOAD_S
        )
    from distrl.replay.reverb import ReverbReplayBuffer  # brings TensorFlow

    buffer = ReverbReplayBuffer(
        server,
        struct,
        config,
        batch_size,
        table,
        unrolls_per_item=experiment.unrolls_per_item,
        stop=stop,
        insert_timeout=timeout,
        comes_back_within=COMES_BACK if experiment.supervision.restarts else 0.0,
    )
    buffer.wait_for_server(_LOAD_S)
    return buffer


class TableNode:
    """Owns a table in shared memory, from its making to its removal."""

    def __init__(self, experiment: Experiment, table: str, run_dir: str, start: Start):
        self._stop = lp.stop_event()
        if board.here().restarted and shared_file.exists(table):
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
