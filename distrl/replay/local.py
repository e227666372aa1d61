"""Replay in this process."""

import collections
import threading
from collections.abc import Callable

import numpy as np

from distrl.errors import Stopped
from distrl.replay.buffer import (
    ReplayBuffer,
    ReplayConfig,
    TableInfo,
    checked_priorities,
)
from distrl.replay.columns import Block, Columns
from distrl.replay.rate_limiter import RateLimiter
from distrl.replay.sum_tree import SumTree
from distrl.replay.unrolls import Unroller
from distrl.replay.waiting import wait_until
from distrl.types import Inference, Sample, TimeStep, Trajectory


class LocalTable:
    """A table that several `LocalReplayBuffer`s share, in any threads."""

    def __init__(
        self,
        struct: Trajectory,
        config: ReplayConfig,
        batch_size: int,
        name: str = "replay",
        seed: int | None = None,
    ):
        """Args:
        struct: of one stream at one step, from `distrl.specs.trajectory_struct`.
        config: checked against `batch_size` here.
        batch_size: unrolls of a sample.
        name: for messages.
        seed: of the choice of samples; None: a fresh one.
        """
        config.check(batch_size)
        self._config = config
        self._batch_size = batch_size
        self._name = name
        columns = Columns(struct, config.unroll_length)
        self._store: _Queue | _Ring
        if config.table == "queue":
            self._store = _Queue(columns, config.max_size)
        else:
            self._store = _Ring(columns, config, batch_size, np.random.default_rng(seed))
        lock = threading.Lock()
        self._has_room = threading.Condition(lock)
        self._has_samples = threading.Condition(lock)

    def insert(self, block: Block, stop: threading.Event | None, timeout: float) -> None:
        """Takes the unrolls of `block` in turn, as soon as there is room.

        Raises:
          Stopped, DeadlineExceeded: nothing of the rest could be taken.
        """
        with self._has_room:
            while True:
                count = self._store.can_insert(block.size)
                if count == block.size:
                    self._store.insert(block)
                    self._has_samples.notify_all()
                    return
                if count:
                    first, block = block.split(count, self._store.columns.has_time)
                    self._store.insert(first)
                    self._has_samples.notify_all()
                wait_until(
                    self._has_room,
                    lambda: self._store.can_insert(1) > 0,
                    stop=stop,
                    timeout=timeout,
                    what=self._what("an insert waits for room"),
                )

    def sample(self, stop: threading.Event | None, timeout: float | None) -> Sample:
        """A batch. Raises as `ReplayBuffer.sample`."""
        with self._has_samples:
            wait_until(
                self._has_samples,
                self._can_sample,
                stop=stop,
                timeout=timeout,
                what=self._what(f"a batch of {self._batch_size} waits for samples"),
            )
            sample = self._store.sample(self._batch_size)
            self._has_room.notify_all()
        return sample

    def _what(self, who: str) -> Callable[[], str]:
        return lambda: f"{who}: {self._info()}"

    def _can_sample(self) -> bool:
        return self._store.can_sample(self._batch_size)

    def can_sample(self) -> bool:
        """True where `sample` would not wait."""
        return self._can_sample()  # one comparison; a lock would make it no truer

    def update_priorities(self, keys: np.ndarray, priorities: np.ndarray) -> None:
        """As `ReplayBuffer.update_priorities`."""
        keys, priorities = checked_priorities(keys, priorities)
        with self._has_samples:
            self._store.update_priorities(keys, priorities)

    def _info(self) -> TableInfo:
        counts = self._store.counts
        return TableInfo(
            self._name, counts.size, self._config.max_size, counts.inserts, counts.samples
        )

    def info(self) -> TableInfo:
        """How the table stands."""
        with self._has_samples:
            return self._info()


class LocalReplayBuffer(ReplayBuffer):
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
        table: shared.
        struct: of one stream at one step.
        config: the table's.
        batch_size: the table's.
        stop: set when the program stops; ends waits.
        insert_timeout: seconds that an insert waits for room before it fails.
        """
        config.check(batch_size)
        self._table = table
        self._unroller = Unroller(struct, config.unroll_length)
        self._stop = stop
        self._insert_timeout = insert_timeout
        self._closed = False

    def needs_state(self, stream_ids: np.ndarray, life: int | None = None) -> bool:
        return self._unroller.needs_state(stream_ids, life)

    def add(
        self, stream_ids: np.ndarray, timestep: TimeStep, inference: Inference, life: int = 0
    ) -> None:
        block = self._unroller.cut(stream_ids, timestep, inference, life)
        if block is not None:
            self._check_open()
            self._table.insert(block, self._stop, self._insert_timeout)

    def flush(self) -> None:
        self._check_open()

    def sample(self, timeout: float | None) -> Sample:
        self._check_open()
        return self._table.sample(self._stop, timeout)

    def update_priorities(self, keys: np.ndarray, priorities: np.ndarray) -> None:
        self._table.update_priorities(keys, priorities)

    def can_sample(self) -> bool:
        return self._table.can_sample()

    def info(self) -> TableInfo:
        return self._table.info()

    def close(self) -> None:
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise Stopped(f"this client of table {self._table.info().name!r} is closed")


class _Counts:
    """Of a queue."""

    def __init__(self) -> None:
        self.size = self.inserts = self.samples = 0


class _Queue:
    """Blocks in the order in which they came; a block that is just one batch is never copied."""

    def __init__(self, columns: Columns, max_size: int):
        self.columns = columns
        self.counts = _Counts()
        self._max_size = max_size
        self._blocks: collections.deque[Block] = collections.deque()

    def can_insert(self, count: int) -> int:
        return min(count, self._max_size - self.counts.size)

    def insert(self, block: Block) -> None:
        self._blocks.append(block)
        self.counts.size += block.size
        self.counts.inserts += block.size

    def can_sample(self, count: int) -> bool:
        return self.counts.size >= count

    def sample(self, count: int) -> Sample:
        parts = []
        left = count
        while left:
            block = self._blocks.popleft()
            if block.size > left:
                block, rest = block.split(left, self.columns.has_time)
                self._blocks.appendleft(rest)
            parts.append(block)
            left -= block.size
        counts = self.counts
        keys = np.arange(counts.samples, counts.samples + count, dtype=np.uint64)
        counts.size -= count
        counts.samples += count
        batch = self.columns.join(parts)
        return Sample(self.columns.trajectory(batch, np.ones(count, np.float32)), keys)

    def update_priorities(self, keys: np.ndarray, priorities: np.ndarray) -> None:
        """A queue has none."""


class _Ring:
    """The newest `max_size` unrolls; sampled with replacement.

    An unroll's key is its number in the order of inserts; it lies in the slot `key % max_size`.
    """

    def __init__(
        self,
        columns: Columns,
        config: ReplayConfig,
        batch_size: int,
        rng: np.random.Generator,
    ):
        self.columns = columns
        self.counts = RateLimiter(config.limits(batch_size))
        self._max_size = config.max_size
        self._stored = columns.allocate(config.max_size)
        self._rng = rng
        self._tree = SumTree(config.max_size) if config.table == "prioritized" else None
        self._exponent = config.priority_exponent
        self._initial = self._weights(np.array(config.initial_priority, np.float64))

    def _weights(self, priorities: np.ndarray) -> np.ndarray:
        # As in Reverb, priority 0 means never, whatever the exponent.
        return np.where(priorities == 0, 0.0, priorities**self._exponent)

    def can_insert(self, count: int) -> int:
        return self.counts.can_insert(count, self._max_size)

    def insert(self, block: Block) -> None:
        # More than fits at once goes in parts, the later ones over the earlier ones.
        while block.size:
            slot = self.counts.inserts % self._max_size
            count = min(block.size, self._max_size - slot)
            part, block = block.split(count, self.columns.has_time)
            end = slot + count
            for stored, column, time in zip(
                self._stored.columns, part.columns, self.columns.has_time, strict=True
            ):
                if time:
                    stored[:, slot:end] = column
                else:
                    stored[slot:end] = column
            if self._tree is not None:
                self._tree.set(np.arange(slot, end), np.full(count, self._initial))
            self.counts.inserts += count
            self.counts.deletes = max(0, self.counts.inserts - self._max_size)

    def can_sample(self, count: int) -> bool:
        return self.counts.can_sample(count)

    def sample(self, count: int) -> Sample:
        counts = self.counts
        if self._tree is not None and (total := self._tree.total) > 0:
            slots = self._tree.find(self._rng.random(count) * total)
            probability = (self._tree.get(slots) / total).astype(np.float32)
        else:
            slots = self._rng.integers(counts.size, size=count)
            probability = np.full(count, 1.0 / counts.size, np.float32)
        newest = counts.inserts - 1
        keys = (newest - (newest - slots) % self._max_size).astype(np.uint64)
        batch = self.columns.allocate(count)
        for stored, out, time in zip(
            self._stored.columns, batch.columns, self.columns.has_time, strict=True
        ):
            # The slots lie inside; "raise" would gather into a copy first.
            np.take(stored, slots, axis=1 if time else 0, out=out, mode="clip")
        counts.samples += count
        return Sample(self.columns.trajectory(batch, probability), keys)

    def update_priorities(self, keys: np.ndarray, priorities: np.ndarray) -> None:
        if self._tree is None:
            return
        keys = keys.astype(np.int64)
        counts = self.counts
        present = (keys >= counts.deletes) & (keys < counts.inserts)
        if present.any():
            weights = self._weights(priorities[present])
            self._tree.set(keys[present] % self._max_size, weights)
