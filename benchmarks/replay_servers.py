"""Replay servers in processes of their own, as programs have them, for `replay.py`."""

import multiprocessing
import os
import socket
import tempfile
import threading
from multiprocessing.synchronize import Event

from distrl.replay.buffer import ReplayBuffer, ReplayReader
from distrl.replay.config import ReplayConfig
from distrl.types import Trajectory

_KEY = "the key of a benchmark"
_START_S = 120.0  # Reverb's imports TensorFlow


def _serve_table(
    struct: Trajectory, config: ReplayConfig, batch_size: int, address: str, started: Event
) -> None:
    from distrl.replay.served.server import TableServer
    from distrl.replay.shared.table import SharedTable

    table = SharedTable.create(struct, config, batch_size, f"benchmark-{os.getpid()}")
    server = TableServer(table, struct, config, address, _KEY)
    started.set()
    threading.Event().wait()
    server.close()


def _serve_reverb(
    struct: Trajectory, config: ReplayConfig, batch_size: int, address: str, started: Event
) -> None:
    import reverb

    from distrl.replay.reverb.server import reverb_tables

    tables = reverb_tables(config, struct, batch_size, "benchmark")
    server = reverb.Server(tables, int(address.rpartition(":")[2]))
    started.set()
    server.wait()


class ReplayServer:
    """A server of an empty table.

    Attributes:
      pid: of its process.
    """

    def __init__(self, kind: str, struct: Trajectory, config: ReplayConfig, batch_size: int):
        """Starts it.

        Args:
          kind: "served", at a Unix socket; "tcp", the same at a port; or "reverb".
          struct, config, batch_size: the table's.
        """
        self._kind, self._table = kind, (struct, config, batch_size)
        self._folder = tempfile.TemporaryDirectory()
        self._address = f"unix:{self._folder.name}/table"
        if kind != "served":
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                self._address = f"127.0.0.1:{free.getsockname()[1]}"
        context = multiprocessing.get_context("spawn")  # this process has threads
        started = context.Event()
        self._process = context.Process(
            target=_serve_reverb if kind == "reverb" else _serve_table,
            args=(*self._table, self._address, started),
            daemon=True,
        )
        self._process.start()
        if not started.wait(_START_S):
            raise TimeoutError(f"the {kind} server has not started in {_START_S:.0f} s")
        assert self._process.pid is not None
        self.pid = self._process.pid

    def clients(self) -> tuple[ReplayBuffer, ReplayReader]:
        """Returns an actor's client and a learner's, to be closed in reverse order."""
        struct, config, batch_size = self._table
        if self._kind == "reverb":
            import reverb

            from distrl.replay.reverb.buffer import ReverbReplayBuffer

            client = reverb.Client(self._address)
            buffer = ReverbReplayBuffer(client, struct, config, batch_size, "benchmark")
            return buffer, buffer
        from distrl.replay.served.client import ServedReplayBuffer
        from distrl.replay.served.prefetch import PrefetchingReplayBuffer

        served = ServedReplayBuffer(self._address, _KEY, struct, config, batch_size, pipelined=True)
        learner = ServedReplayBuffer(self._address, _KEY, struct, config, batch_size)
        return served, PrefetchingReplayBuffer(learner, batch_size)

    def stop(self) -> None:
        """Ends it."""
        self._process.terminate()
        self._process.join()
        self._folder.cleanup()
