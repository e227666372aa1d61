"""Writes items to a Reverb server."""

import threading
from collections.abc import Callable
from typing import Any

import numpy.typing as npt
import reverb
from reverb import errors, pybind

from distrl.errors import DeadlineExceeded, Stopped
from distrl.replay.reverb.calls import ServerCalls
from distrl.replay.table.waiting import SLICE
from distrl.runtime.heartbeat import main_thread_heartbeat
from distrl.runtime.patience import Deadline
from distrl.runtime.time_account import current_account

# Items that may be unconfirmed: one is on its way while the next one is made.
_IN_FLIGHT = 1


class ItemWriter:
    """Writes items to one table until its server dies."""

    def __init__(
        self,
        client: reverb.Client,
        table: str,
        server: ServerCalls,
        stop: threading.Event | None,
        describe: Callable[[], str],
    ):
        """Args:
        client: client of the server.
        table: name of the table.
        server: calls to the server.
        stop: set when the program stops; ends waits.
        describe: describes the table, for messages.
        """
        self._table = table
        self._server = server
        self._stop = stop
        self._describe = describe
        # Without a signature: asking for it would be a call that may wait.
        self._writer = client.trajectory_writer(1, get_signature_timeout_ms=None)
        self._writer._writer.ConfigureChunker(0, pybind.ConstantChunkerOptions(1, 1))

    def write(self, buffer: npt.NDArray[Any], priority: float, timeout: float) -> None:
        """Writes an item, and waits until at most one is unconfirmed.

        Args:
          buffer: uint8, the item.
          priority: its initial priority.
          timeout: seconds to wait for room.

        Raises:
          RuntimeError, ServerSilent: the server is gone.
          Stopped, DeadlineExceeded: as `ReplayWriter.add`.
        """
        # The calls under TrajectoryWriter.append and .create_item, whose bookkeeping of columns
        # costs a third of an item where there is one column of one step.
        writer = self._writer._writer
        references = writer.Append([buffer])
        writer.CreateItem(self._table, priority, [references], [True])
        self.confirm(_IN_FLIGHT, timeout, "an insert waits for room")

    def confirm(self, unconfirmed: int, timeout: float, what: str) -> None:
        """Waits until at most `unconfirmed` items are unconfirmed. Raises as `write`.

        Args:
          unconfirmed: number of items.
          timeout: seconds.
          what: describes the wait, for messages.
        """
        watch = self._server.watch()
        heartbeat, account = main_thread_heartbeat(), current_account()
        state: int | None = None
        deadline: Deadline | None = None  # set once it waits
        try:
            while True:
                try:
                    self._writer.flush(unconfirmed, timeout_ms=int(SLICE * 1000))
                    return
                except errors.DeadlineExceededError as error:
                    if deadline is None:
                        deadline = Deadline(timeout)
                        heartbeat.wait()
                        state = account.wait()
                    if self._stop is not None and self._stop.is_set():
                        raise Stopped(f"{what}: {self._server}") from error
                    if deadline.left() <= 0:
                        raise DeadlineExceeded(
                            f"{what}: {deadline.reason()}: {self._describe()}"
                        ) from error
                    if deadline.line_due():
                        deadline.tell(f"{what}: {self._server}")
                    watch()
        finally:
            if state is not None:
                account.switch(state)
            heartbeat.tick()

    def close(self) -> None:
        """Closes the connection."""
        self._writer.close()
