"""Replay in this process."""

import threading

from distrl.replay.client import TableReplayBuffer
from distrl.replay.config import ReplayConfig
from distrl.replay.local.table import LocalTable
from distrl.types import Trajectory


class LocalReplayBuffer(TableReplayBuffer):
    """A client of a `LocalTable`."""

    def __init__(
        self,
        table: LocalTable,
        struct: Trajectory,
        config: ReplayConfig,
        batch_size: int,
        stop: threading.Event | None = None,
        insert_timeout: float = 600.0,
    ):
        """Args:
        table: the table, which other clients may share.
        struct: one stream at one step.
        config: the table's settings, except those that `reconfigure` can change: these are taken
          from the table.
        batch_size: the table's batch size.
        stop: set when the program stops; ends waits.
        insert_timeout: seconds that an insert waits for room before it fails.

        Raises:
          ConfigError: the table's sizes differ, or only one of table and client is a queue.
        """
        config.check(batch_size)
        table.check_client(config, batch_size)
        super().__init__(table, struct, config, stop, insert_timeout)
