"""The client of a table on a Reverb server: an actor writes, a learner samples."""

import contextlib
import logging
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import reverb

from distrl.errors import DeadlineExceeded, PeerError, ServerSilent, Stopped
from distrl.replay.buffer import checked_priorities
from distrl.replay.client import UnrollingReplayBuffer
from distrl.replay.columns import Block
from distrl.replay.config import ReplayConfig
from distrl.replay.remote.fetched import FetchedBatches
from distrl.replay.remote.fetcher import Fetcher
from distrl.replay.remote.insert_count import InsertCount
from distrl.replay.remote.items import Item, ItemPacker, joined
from distrl.replay.reverb import checkpoints
from distrl.replay.reverb.calls import ServerCalls
from distrl.replay.reverb.max_priority import LargestPriority
from distrl.replay.reverb.server import check_items, table_info
from distrl.replay.reverb.writer import ItemWriter
from distrl.replay.table.info import TableInfo
from distrl.types import Sample, Trajectory

_LOG = logging.getLogger(__name__)


class ReverbReplayBuffer(UnrollingReplayBuffer):
    """A client of a Reverb table.

    `add` returns when at most one item is unconfirmed, so that a full table blocks its writers. If
    the connection breaks and is restored, Reverb sends the unconfirmed item again: it may then be
    in the table twice.

    A thread samples ahead: one batch in Reverb's sampler, and an assembled one. These count as
    sampled.
    """

    kind = "reverb"

    def __init__(
        self,
        client: reverb.Client,
        struct: Trajectory,
        config: ReplayConfig,
        batch_size: int,
        name: str,
        stop: threading.Event | None = None,
        unrolls_per_item: int = 1,
        insert_timeout: float = 600.0,
        flush_timeout: float = 10.0,
        reconnect_timeout: float = 0.0,
    ):
        """Args:
        client: client of the server with `reverb_tables`.
        struct: one stream at one step.
        config: the table's settings.
        batch_size: unrolls per sample.
        name: the table's name.
        stop: set when the program stops; ends waits.
        unrolls_per_item: for a queue, unrolls that are sent together; divides `batch_size` and
          `max_size`, and is the same for all clients. Ideally the number of streams that an actor
          steps at once. Unrolls wait in the client until they fill an item.
        insert_timeout: seconds that an insert waits for room before it fails.
        flush_timeout: seconds that `flush` waits.
        reconnect_timeout: seconds to wait for a new server at the same address if the server dies;
          items on their way to it, and priorities, are lost. 0: its death is an error.
        """
        check_items(config, batch_size, unrolls_per_item)
        super().__init__(struct, config)
        self._batch_size = batch_size
        self._per_item = unrolls_per_item
        self._exponent = config.priority_exponent if self.is_prioritized else 0.0
        self._name = name
        self._stop = stop
        self._insert_timeout = insert_timeout
        self._flush_timeout = flush_timeout
        self._reconnect_timeout = reconnect_timeout
        self._server = ServerCalls(client, name)
        self._client = client
        self._largest = LargestPriority(client, name, config.initial_priority)
        self._packer = ItemPacker(self.columns, unrolls_per_item)
        self._writer: ItemWriter | None = None
        self._batches: FetchedBatches[Sample] = FetchedBatches(
            self._fetch, self.info, self._describe, batch_size, stop
        )
        self._inserts = InsertCount(self.info, config.table == "queue")
        self._closed = False

    @property
    def is_prioritized(self) -> bool:
        return self._config.table == "prioritized"

    def watch(self) -> Callable[[], None]:
        """See `ServerCalls.watch`."""
        return self._server.watch()

    def wait_for_server(self, timeout: float) -> None:
        """Waits until the server answers.

        Raises:
          ServerSilent: it did not within `timeout` seconds.
          Stopped: the program is stopping.
        """
        deadline = time.monotonic() + timeout
        while True:
            try:
                self._server.info(self._stop)
                return
            except ServerSilent:
                if time.monotonic() >= deadline:
                    raise

    def _insert(self, block: Block) -> None:
        for item in self._packer.add(block):
            self._write(item)

    def _write(self, block: Block) -> None:
        self._check_open()
        try:
            if self._writer is None:
                if self.is_prioritized:
                    self._largest.read(self._stop)
                self._writer = ItemWriter(
                    self._client, self._name, self._server, self._stop, self._describe
                )
            priority = self._largest.of_new() if self.is_prioritized else 1.0
            if block.priorities is not None:  # an item of a prioritized table is one unroll
                priority = float(block.priorities[0])
            self._writer.write(self.columns.pack(block), priority, self._insert_timeout)
        except (RuntimeError, ServerSilent) as error:
            self.reconnect(error, f"an item of {block.size} unrolls")

    def reconnect(self, error: Exception, lost: str) -> None:
        """Waits for a new server after the death of the current one.

        Args:
          error: the error that the server's death caused.
          lost: what is lost with the server, for the log.

        Raises:
          RuntimeError, ServerSilent: `error`, if there is no new server in time.
          Stopped: the program is stopping.
        """
        silent = isinstance(error, ServerSilent)
        named = error if silent else RuntimeError(f"{self._server}: {error}")
        if not self._reconnect_timeout:
            raise named from error
        _LOG.warning("%s; lost with it: %s; waiting for a new server", named, lost)
        old, self._writer = (self._writer, self._batches.drop()), None
        # In a thread, since closing may wait for the dead server.
        threading.Thread(target=_close, args=old, name=f"close {self._name}", daemon=True).start()
        self._client = reverb.Client(self._client.server_address)
        self._server = ServerCalls(self._client, self._name)
        self._largest.connect(self._client, self._name)
        deadline = time.monotonic() + self._reconnect_timeout
        while True:
            try:
                self.wait_for_server(self._reconnect_timeout)
                return
            except (RuntimeError, ServerSilent):
                if time.monotonic() >= deadline:
                    raise named from error

    def flush(self) -> None:
        self._check_open()
        if self._writer is None:
            return
        try:
            self._writer.confirm(0, self._flush_timeout, "a flush waits for room")
        except (RuntimeError, ServerSilent) as error:
            self.reconnect(error, "unconfirmed items")

    def sample(self, timeout: float | None) -> Sample:
        self._check_open()
        while True:
            try:
                return self._batches.take(timeout, self._server.watch())
            except (RuntimeError, ServerSilent) as error:
                self.reconnect(error, "batches that were fetched in advance")

    def _fetch(self) -> Fetcher[Sample]:
        return Fetcher(self.make_sampler, self._assemble, self._name)

    def make_sampler(self) -> Any:
        """Returns Reverb's sampler, which fetches a batch's items ahead; for `item`, any thread."""
        # As `reverb.Client.sample` does, but with a handle whose Close ends a wait; the last
        # argument is the number of items in flight.
        return self._client._client.NewSampler(
            self._name, 2**62, self._batch_size // self._per_item
        )

    def _assemble(self, sampler: Any) -> Sample:
        """Returns the next batch; waits in Reverb without a deadline."""
        items = [self.item(sampler) for _ in range(self._batch_size // self._per_item)]
        return self.batch(items)._replace(inserts=self._inserts())

    def item(self, sampler: Any) -> Item:
        """Returns the next item; waits in Reverb without a deadline, until `sampler.Close()`.

        Raises:
          RuntimeError: the server is gone, or the sampler was closed.
        """
        key, probability, size, priority, buffer = sampler.GetNextTrajectory()
        mass = float(priority) ** self._exponent / float(probability)
        return Item(key, probability, mass, size, self.columns.unpack(buffer, self._per_item))

    def batch(self, items: Sequence[Item]) -> Sample:
        """Returns a sample of these items, which may be from several tables like this one."""
        return joined(items, self.columns)

    def update_priorities(self, keys: npt.NDArray[np.uint64], priorities: npt.NDArray[Any]) -> None:
        keys, priorities = checked_priorities(keys, priorities)
        if not self.is_prioritized or self._config.priority_of is not None:
            return
        try:
            self.send_priorities(keys, priorities, np.max(priorities, initial=0.0))
        except (RuntimeError, ServerSilent) as error:
            self.reconnect(error, f"{len(keys)} priorities")

    def send_priorities(
        self, keys: npt.NDArray[np.uint64], priorities: npt.NDArray[Any], largest: float
    ) -> None:
        """As `update_priorities` with checked arguments; raises if the server is gone.

        Args:
          keys: uint64 `[N]`.
          priorities: `[N]`.
          largest: the largest of the update, including those of other servers' unrolls.
        """
        self._check_open()
        updates = dict(zip(keys.tolist(), priorities.tolist(), strict=True))
        self._largest.note(float(largest))

        def send() -> None:
            if updates:
                self._client.mutate_priorities(self._name, updates=updates)
            self._largest.send()

        self._server.call(send, "a priority update", self._stop)

    def discard(self, keys: npt.NDArray[np.uint64], oldest: int) -> None:
        try:
            self.remove(keys, oldest)
        except (RuntimeError, ServerSilent) as error:
            self.reconnect(error, f"the removal of {len(keys)} unrolls")

    def remove(self, keys: npt.NDArray[np.uint64], oldest: int) -> None:
        """As `discard`; raises if the server is gone."""
        del oldest  # Reverb removes by keys
        if len(keys) == 0 or self._config.table == "queue":
            return
        self._check_open()
        removed = keys.tolist()

        def send() -> None:
            self._client.mutate_priorities(self._name, updates={}, deletes=removed)

        self._server.call(send, "a removal", self._stop)

    def can_sample(self) -> bool:
        return not self._closed and self._batches.ready()

    def has_more(self) -> bool:
        return self._batches.has_more()

    def info(self) -> TableInfo:
        return table_info(self._server.info(self._stop), self._per_item)

    def _describe(self) -> str:
        """Returns the table's counts for a message, or why there are none."""
        try:
            return f"{self.info()} at {self._client.server_address}"
        except (DeadlineExceeded, Stopped, RuntimeError) as error:
            return str(error)

    def save(self, folder: Path, timeout: float) -> dict[str, Any]:
        self._check_open()
        try:  # regardless of `stop`: the last checkpoint is written when the program stops
            made = self._server.call(self._client.checkpoint, "a checkpoint", None, timeout)
        except RuntimeError as error:  # the server may be restarted
            raise PeerError(str(error)) from error
        folder.mkdir()
        shutil.move(made, folder / checkpoints.FOLDER)
        return checkpoints.describe(folder, self._name, self.columns, self._config, self._per_item)

    def close(self) -> None:
        self._closed = True
        self._batches.close()
        if self._writer is not None:
            self._writer.close()

    def _check_open(self) -> None:
        if self._closed:
            raise Stopped(f"this client is closed: {self._server}")


def _close(writer: ItemWriter | None, fetcher: Fetcher[Any] | None) -> None:
    """Closes what belongs to a dead server, whose errors are expected."""
    with contextlib.suppress(RuntimeError):
        if fetcher is not None:
            fetcher.close()
        if writer is not None:
            writer.close()
