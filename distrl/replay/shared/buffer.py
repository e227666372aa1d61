"""Replay in shared memory: many writers and readers on one machine, any of which may die."""

import threading
from collections.abc import Callable
from pathlib import Path

from distrl.replay.client import TableReplayBuffer
from distrl.replay.config import ReplayConfig
from distrl.replay.shared.handle import TableHandle
from distrl.replay.shared.snapshot import restore_rng
from distrl.replay.shared.table import SharedTable
from distrl.replay.table import reconfigure
from distrl.types import Trajectory


class SharedReplayBuffer(TableReplayBuffer):
    """A client of a `SharedTable`. It belongs to the process that creates it, not to its forks.

    Unrolls that it adds are in the table when `add` returns. If its process dies, unrolls that it
    was inserting are not in the table, and unrolls that it was reading from a queue go to another
    reader.
    """

    def __init__(
        self,
        table: SharedTable | str,
        struct: Trajectory,
        config: ReplayConfig,
        batch_size: int,
        stop: threading.Event | None = None,
        insert_timeout: float = 600.0,
        open_timeout: float = 60.0,
        name: str = "",
    ):
        """Args:
        table: the table or its name.
        struct: one stream at one step.
        config: the table's settings, except those that `reconfigure` can change: these are taken
          from the table.
        batch_size: the table's batch size.
        stop: set when the program stops; ends waits.
        insert_timeout: seconds that an insert waits for room before it fails.
        open_timeout: seconds to wait for a table of this name.
        name: the client's name, for messages; "": the name of its process.

        Raises:
          DeadlineExceeded: there is no such table.
          ConfigError: its sizes differ, or only one of table and client is a queue.
          SpecError: its struct differs.
        """
        config.check(batch_size)
        if isinstance(table, str):
            table = SharedTable.open(table, open_timeout, stop)
        reconfigure.check_client(table.name, table.config, table.batch_size, config, batch_size)
        self._handle = TableHandle(table, struct, config.sampler, name)
        super().__init__(self._handle, struct, config, stop, insert_timeout)
        self._shared = table

    def restore_rng(self, saved: Path) -> None:
        """Continues the random choice of samples of the client that called `save`.

        Args:
          saved: the folder that `save` wrote.
        """
        restore_rng(self._shared, saved)

    def wait_for_counts(
        self, done: Callable[[int, int], bool], what: str, timeout: float | None = None
    ) -> None:
        """Waits until `done(inserts, samples)` of the table.

        Args:
          done: called after each change.
          what: describes the wait, for messages.
          timeout: seconds; None: the timeout of inserts.

        Raises:
          Stopped, DeadlineExceeded: as `add`.
        """
        self._check_open()
        limit = self._insert_timeout if timeout is None else timeout
        self._handle.wait_for_counts(done, what, self._stop, limit)

    def close(self) -> None:
        if not self._closed:
            self._handle.leave()
        super().close()
