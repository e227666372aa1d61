"""A client of a table that a node serves, on this machine or another one."""

import threading

from distrl.errors import ConfigError
from distrl.replay.client import TableReplayBuffer
from distrl.replay.columns import Block, Columns
from distrl.replay.config import ReplayConfig
from distrl.replay.served.connection import Connection
from distrl.replay.served.table import ServedTable
from distrl.types import Trajectory


class ServedReplayBuffer(TableReplayBuffer):
    """A client of a `TableServer`. Its unrolls are in the table when `add`, or `flush`, returns.

    A lost connection is made again, without losing or doubling any unroll. If the server's process
    dies, the table stays, and the next process serves it; only a batch of a queue that was on its
    way is lost.
    """

    def __init__(
        self,
        address: str,
        key: str,
        struct: Trajectory,
        config: ReplayConfig,
        batch_size: int,
        stop: threading.Event | None = None,
        insert_timeout: float = 600.0,
        reconnect_timeout: float = 60.0,
        name: str = "",
        pipelined: bool = False,
    ) -> None:
        """Args:
        address: the server's address, "unix:/path" or "host:port".
        key: the program's key.
        struct: one stream at one step.
        config: the table's settings.
        batch_size: the table's batch size.
        stop: set when the program stops; ends waits.
        insert_timeout: seconds that an insert waits for room before it fails.
        reconnect_timeout: seconds that a call waits for a server that is gone, or does not answer;
          below `KEPT_S` of the server, which makes calls once.
        name: the client's name, for messages.
        pipelined: whether `add` returns while its unrolls are on their way. Unrolls of two calls
          may be: the next call that finishes unrolls waits for the first of them, `flush` for both.
        """
        config.check(batch_size)

        def connect(limit: int, saves: bool = False) -> Connection:
            # The last checkpoint is written when the program stops.
            until = None if saves else stop
            return Connection(address, key, limit, until, reconnect_timeout, name)

        self._served = ServedTable(connect, Columns(struct, config.unroll_length), batch_size)
        self._batch_size = batch_size
        self._pipelined = pipelined
        super().__init__(self._served, struct, config, stop, insert_timeout)

    @property
    def table(self) -> ServedTable:
        """The table."""
        return self._served

    @property
    def is_prioritized(self) -> bool:
        # A queue stays a queue.
        return self._config.table != "queue" and super().is_prioritized

    def wait_for_server(self, timeout: float) -> None:
        """Waits until the server answers.

        Raises:
          ServerSilent: it did not within `timeout` seconds.
          ConfigError: its table differs from this client's.
          Stopped: the program is stopping.
        """
        name, *theirs = self._served.layout(timeout)
        ours = [self._config.table == "queue", self._config.unroll_length, self._batch_size]
        if theirs != ours:
            raise ConfigError(
                f"table {name!r} has (queue, unroll_length, batch_size) {theirs}, and its client "
                f"{ours}"
            )

    def _insert(self, block: Block) -> None:
        self._check_open()
        self._served.insert(block, self._stop, self._insert_timeout, self._pipelined)

    def flush(self) -> None:
        super().flush()
        self._served.flush(self._stop, self._insert_timeout)

    def close(self) -> None:
        super().close()
        self._served.close()
