"""Replay in a Reverb server. Only this module and `reverb_saving` import Reverb, and TensorFlow.

An item holds a block of `unrolls_per_item` unrolls as one column of bytes (see
`distrl.replay.columns`): Reverb's costs are per item and column, and one message of one column
costs about half of one with a column for each field. What reads it knows the names.
"""

import contextlib
import logging
import math
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import reverb
from reverb import errors, pybind

from distrl.errors import ConfigError, DeadlineExceeded, PeerError, Stopped
from distrl.replay.buffer import checked_priorities
from distrl.replay.client import UnrollingReplayBuffer
from distrl.replay.columns import Block, Columns
from distrl.replay.config import RateLimits, ReplayConfig
from distrl.replay.reverb import checkpoints
from distrl.replay.reverb.calls import ServerCalls, ServerSilent
from distrl.replay.reverb.fetcher import Fetcher
from distrl.replay.reverb.shard_choice import Item
from distrl.replay.table.info import Ages, Contents, TableInfo
from distrl.replay.table.waiting import SLICE
from distrl.runtime.heartbeat import main_thread_heartbeat
from distrl.types import Sample, Trajectory

_LOG = logging.getLogger(__name__)

# Items written and not yet confirmed: one is on its way while the next is made.
_IN_FLIGHT = 1


def reverb_tables(
    config: ReplayConfig,
    struct: Trajectory,
    batch_size: int,
    name: str,
    unrolls_per_item: int = 1,
) -> list[reverb.Table]:
    """The tables of a server, for `reverb.Server` or a `ReverbNode`.

    Args:
      config: sizes in unrolls.
      struct: of one stream at one step, from `distrl.specs.trajectory_struct`.
      batch_size: unrolls of a sample.
      name: unique to the program and task: two servers on one port are both accepted.
      unrolls_per_item: as of `ReverbReplayBuffer`.

    Raises:
      ConfigError: sizes that do not go into items.
    """
    _check_items(config, batch_size, unrolls_per_item)
    nbytes = Columns(struct, config.unroll_length).nbytes(unrolls_per_item)
    if nbytes >= 2**31:
        raise ConfigError(
            f"an item of {unrolls_per_item} unrolls is {nbytes / 1e9:.1f} GB; Reverb takes less "
            f"than 2.1 GB: at most {max(1, unrolls_per_item * 2**31 // nbytes)} unrolls an item"
        )
    if config.table == "queue":
        return [reverb.Table.queue(name, config.max_size // unrolls_per_item)]
    limits = config.limits(batch_size)
    if config.samples_per_insert is None:
        limiter = reverb.rate_limiters.MinSize(limits.min_size_to_sample)
    else:
        limiter = reverb.rate_limiters.SampleToInsertRatio(
            limits.samples_per_insert,
            limits.min_size_to_sample,
            (limits.min_diff, limits.max_diff),
        )
    if config.table == "uniform":
        sampler = reverb.selectors.Uniform()
    else:
        sampler = reverb.selectors.Prioritized(config.priority_exponent)
    return [
        reverb.Table(
            name,
            sampler=sampler,
            remover=reverb.selectors.Fifo(),
            max_size=config.max_size,
            rate_limiter=limiter,
        )
    ]


def _check_items(config: ReplayConfig, batch_size: int, unrolls_per_item: int) -> None:
    config.check(batch_size)
    if config.sampler is not None:
        raise ConfigError(
            f"replay.sampler={type(config.sampler).__name__} is not for Reverb, which has samplers "
            "of its own only; with replay.backend=shared_memory it can be used"
        )
    if unrolls_per_item < 1:
        raise ConfigError(f"unrolls_per_item must be 1 or more; got {unrolls_per_item}")
    if config.table != "queue" and unrolls_per_item != 1:
        raise ConfigError(
            f"unrolls_per_item={unrolls_per_item} must be 1 for replay.table={config.table}: its "
            "unrolls are sampled one by one"
        )
    for what, size in (("batch_size", batch_size), ("replay.max_size", config.max_size)):
        if size % unrolls_per_item:
            raise ConfigError(
                f"{what}={size} is no multiple of unrolls_per_item={unrolls_per_item}; "
                f"{math.gcd(size, unrolls_per_item)} would be"
            )


def about_tables(
    config: ReplayConfig, struct: Trajectory, address: str, unrolls_per_item: int = 1
) -> dict[str, Any]:
    """What `served_table` needs, for `distrl.replay.shared.segment.announced`."""
    return {
        "address": address,
        "unrolls_per_item": unrolls_per_item,
        "unroll_bytes": Columns(struct, config.unroll_length).nbytes(1),
        "max_size": config.max_size,
        "sampler": config.sampling,
    }


def served_table(name: str, about: Mapping[str, Any]) -> tuple[TableInfo, Contents]:
    """How a table of a server in another process stands, as far as Reverb tells.

    It tells neither who waits nor the priorities nor ages in seconds. An item's bytes are counted
    as the unrolls in it were before Reverb compressed them.

    Args:
      name: the table's.
      about: as `about_tables` gives it.

    Raises:
      DeadlineExceeded, RuntimeError: the server does not answer, or has no such table.
    """
    server = ServerCalls(reverb.Client(about["address"]), name)
    info = _info_of(server.info(None), about["unrolls_per_item"])
    nbytes = about["unroll_bytes"]
    ages = Ages.of(info.size)  # what goes first is the oldest
    contents = Contents(info.size * nbytes, info.max_size * nbytes, about["sampler"], ages)
    return info, contents


def _info_of(info: Any, per_item: int) -> TableInfo:
    """Args: info: Reverb's `TableInfo`."""
    limiter = info.rate_limiter_info
    limits = None
    if info.max_times_sampled != 1:  # no queue
        low, high = (
            value if abs(value) < 1e300 else math.copysign(math.inf, value)
            for value in (limiter.min_diff, limiter.max_diff)
        )
        limits = RateLimits(limiter.samples_per_insert, limiter.min_size_to_sample, low, high)
    return TableInfo(
        info.name,
        info.current_size * per_item,
        info.max_size * per_item,
        limiter.insert_stats.completed * per_item,
        limiter.sample_stats.completed * per_item,
        limits,
    )


def _close(writer: Any, fetcher: Fetcher[Any] | None) -> None:
    """Ends what a server that is gone has left; its errors are that server's."""
    with contextlib.suppress(RuntimeError):
        if fetcher is not None:
            fetcher.close()
        if writer is not None:
            writer.close()


class ReverbReplayBuffer(UnrollingReplayBuffer):
    """A client of a Reverb table.

    `add` returns when at most one item awaits its confirmation, so that a full table holds its
    writers back. If the connection breaks and comes back, Reverb sends the unconfirmed item once
    more: it may then be there twice.

    Sampling fetches ahead in a thread of its own: one batch in Reverb's sampler, and `prefetch`
    batches put together. They count as sampled.
    """

    def __init__(
        self,
        client: reverb.Client,
        struct: Trajectory,
        config: ReplayConfig,
        batch_size: int,
        name: str,
        stop: threading.Event | None = None,
        unrolls_per_item: int = 1,
        prefetch: int = 1,
        insert_timeout: float = 600.0,
        flush_timeout: float = 10.0,
        comes_back_within: float = 0.0,
    ):
        """Args:
        client: of the server with `reverb_tables`.
        struct: of one stream at one step.
        config: as the table's.
        batch_size: unrolls of a sample.
        name: the table's.
        stop: set when the program stops; ends waits.
        unrolls_per_item: of a queue: unrolls that are sent together; it divides `batch_size` and
          `max_size`, and is the same for all clients. Best the number of streams that an actor
          steps at once, if it can be. Unrolls wait in the client until there are as many.
        prefetch: batches put together before they are asked for; 0 for the least policy lag.
        insert_timeout: seconds that an insert waits for room before it fails.
        flush_timeout: seconds that `flush` waits.
        comes_back_within: seconds to wait for a server in the place of one that is gone; items on
          their way to it, and priorities, are lost with it. 0: that is an error.
        """
        self._comes_back_within = comes_back_within
        _check_items(config, batch_size, unrolls_per_item)
        super().__init__(struct, config)
        self._batch_size = batch_size
        self._per_item = unrolls_per_item
        self._name = name
        self._stop = stop
        self._insert_timeout = insert_timeout
        self._flush_timeout = flush_timeout
        self._server = ServerCalls(client, name)
        self._client = client
        self._writer: reverb.TrajectoryWriter | None = None
        self._pending: list[Block] = []  # finished unrolls that do not fill an item yet
        self._pending_size = 0
        self._prefetch = prefetch
        self._fetcher: Fetcher[Sample] | None = None
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
          ServerSilent: it did not in `timeout` seconds.
          Stopped: the program stops.
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
        if not self._pending and block.size == self._per_item:
            self._write(block)
            return
        self._pending.append(block)
        self._pending_size += block.size
        if self._pending_size >= self._per_item:
            self._write_pending()

    def _write_pending(self) -> None:
        parts = self._pending
        self._pending, self._pending_size = [], 0
        while parts:
            taken, size = [], 0
            while parts and size < self._per_item:
                block = parts.pop(0)
                if size + block.size > self._per_item:
                    block, rest = block.split(self._per_item - size, self.columns.has_time)
                    parts.insert(0, rest)
                taken.append(block)
                size += block.size
            if size < self._per_item:
                self._pending, self._pending_size = taken, size
                return
            self._write(self.columns.join(taken))

    def _write(self, block: Block) -> None:
        self._check_open()
        if self._writer is None:
            # No signature is asked for: that would be a call that may wait.
            self._writer = self._client.trajectory_writer(1, get_signature_timeout_ms=None)
            self._writer._writer.ConfigureChunker(0, pybind.ConstantChunkerOptions(1, 1))
        # The calls under TrajectoryWriter.append and .create_item, whose bookkeeping of columns
        # costs a third of an item where there is one column of one step.
        writer = self._writer._writer
        try:
            references = writer.Append([self.columns.pack(block)])
            writer.CreateItem(self._name, self._config.initial_priority, [references], [True])
            self._confirm(_IN_FLIGHT, self._insert_timeout, "an insert waits for room")
        except (RuntimeError, ServerSilent) as error:
            self.wait_for_another(error, f"an item of {block.size} unrolls")

    def _confirm(self, leave: int, timeout: float, what: str) -> None:
        """Waits until no more than `leave` items await their confirmation."""
        writer = self._writer
        if writer is None:
            return
        waited = 0.0
        watch = self._server.watch()
        heartbeat = main_thread_heartbeat()
        while True:
            heartbeat.tick()
            try:
                writer.flush(leave, timeout_ms=int(SLICE * 1000))
                return
            except errors.DeadlineExceededError as error:
                waited += SLICE
                if self._stop is not None and self._stop.is_set():
                    raise Stopped(f"{what}: {self._server}") from error
                if waited >= timeout:
                    raise DeadlineExceeded(
                        f"{what}: nothing in {timeout:g} s: {self._describe()}"
                    ) from error
                watch()

    def wait_for_another(self, error: Exception, lost: str) -> None:
        """Waits for a server in the place of one that is gone.

        Args:
          error: by which that was known.
          lost: with it.

        Raises:
          RuntimeError, ServerSilent: `error`, where no other may come, or none came in time.
          Stopped: the program stops.
        """
        named = error
        if not isinstance(error, ServerSilent):
            named = RuntimeError(f"{self._server}: {error}")
        if not self._comes_back_within:
            raise named from error
        _LOG.warning("%s; lost with it: %s; waiting for another server", named, lost)
        old, self._writer, self._fetcher = (self._writer, self._fetcher), None, None
        # Each may wait for the server that is gone.
        threading.Thread(target=_close, args=old, name=f"close {self._name}", daemon=True).start()
        self._client = reverb.Client(self._client.server_address)
        self._server = ServerCalls(self._client, self._name)
        deadline = time.monotonic() + self._comes_back_within
        while True:
            try:
                self.wait_for_server(self._comes_back_within)
                return
            except (RuntimeError, ServerSilent):
                if time.monotonic() >= deadline:
                    raise named from error

    def flush(self) -> None:
        self._check_open()
        try:
            self._confirm(0, self._flush_timeout, "a flush waits for room")
        except (RuntimeError, ServerSilent) as error:
            self.wait_for_another(error, "what was on its way")

    def sample(self, timeout: float | None) -> Sample:
        self._check_open()
        while True:
            try:
                return self._started().take(timeout, self._stop, self._server.watch())
            except (RuntimeError, ServerSilent) as error:
                self.wait_for_another(error, "batches that were fetched in advance")
            except DeadlineExceeded as error:
                raise DeadlineExceeded(f"{error}: {self._describe()}") from None

    def _started(self) -> Fetcher[Sample]:
        if self._fetcher is None:
            self._fetcher = Fetcher(self.make_sampler, self._assemble, self._prefetch, self._name)
        return self._fetcher

    def make_sampler(self) -> Any:
        """Reverb's sampler, which fetches a batch's items ahead; for `item`, in any thread."""
        # As `reverb.Client.sample` does, but with a handle that can be closed, which ends a wait;
        # the last argument is how many items it has in flight.
        return self._client._client.NewSampler(
            self._name, 2**62, self._batch_size // self._per_item
        )

    def _assemble(self, sampler: Any) -> Sample:
        """The next batch; waits in Reverb for as long as it takes."""
        return self.batch([self.item(sampler) for _ in range(self._batch_size // self._per_item)])

    def item(self, sampler: Any) -> Item:
        """The next item; waits in Reverb for as long as it takes, or until `sampler.Close()`.

        Raises:
          RuntimeError: the server is gone, or the sampler was closed.
        """
        key, probability, size, priority, buffer = sampler.GetNextTrajectory()
        block = self.columns.unpack(buffer, self._per_item)
        return Item(key, probability, priority, size, block)

    def batch(self, items: Sequence[Item]) -> Sample:
        """A sample of these items, of tables like this one."""
        batch = self.columns.join([item.block for item in items])
        probability = np.array([item.probability for item in items], np.float32)
        return Sample(
            self.columns.trajectory(batch, probability.repeat(self._per_item)),
            np.array([item.key for item in items], np.uint64).repeat(self._per_item),
        )

    def update_priorities(self, keys: np.ndarray, priorities: np.ndarray) -> None:
        keys, priorities = checked_priorities(keys, priorities)
        if not self.is_prioritized:
            return
        try:
            self.send_priorities(keys, priorities)
        except (RuntimeError, ServerSilent) as error:
            self.wait_for_another(error, f"{len(keys)} priorities")

    def send_priorities(self, keys: np.ndarray, priorities: np.ndarray) -> None:
        """As `update_priorities`, of checked ones; raises if the server does not take them."""
        self._check_open()
        updates = dict(zip(keys.tolist(), priorities.tolist(), strict=True))
        self._server.call(
            lambda: self._client.mutate_priorities(self._name, updates=updates),
            "a priority update",
            self._stop,
        )

    def can_sample(self) -> bool:
        return not self._closed and self._started().ready()

    def info(self) -> TableInfo:
        return _info_of(self._server.info(self._stop), self._per_item)

    def _describe(self) -> str:
        """The table's counts, or why there are none, for a message."""
        try:
            return f"{self.info()} at {self._client.server_address}"
        except (DeadlineExceeded, Stopped, RuntimeError) as error:
            return str(error)

    def save(self, folder: Path, timeout: float) -> dict[str, Any]:
        self._check_open()
        # Not ended by the program's stop: that is when it is wanted most.
        try:
            made = self._server.call(self._client.checkpoint, "a checkpoint", None, timeout)
        except RuntimeError as error:  # another server may come
            raise PeerError(str(error)) from error
        folder.mkdir()
        shutil.move(made, folder / checkpoints.FOLDER)
        return checkpoints.describe(folder, self._name, self.columns, self._config, self._per_item)

    def close(self) -> None:
        self._closed = True
        if self._fetcher is not None:
            self._fetcher.close()
        if self._writer is not None:
            self._writer.close()

    def _check_open(self) -> None:
        if self._closed:
            raise Stopped(f"this client is closed: {self._server}")
