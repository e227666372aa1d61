"""The unrolls of a table in this process. Every method needs the table's lock to be held."""

import collections
import threading
import time
from typing import Any

import numpy as np
import numpy.typing as npt

from distrl.replay.columns import Block, Columns
from distrl.replay.config import RateLimits, ReplayConfig
from distrl.replay.local.snapshot import QueueSnapshot, RingSnapshot
from distrl.replay.table import reconfigure
from distrl.replay.table.files import Stored, TableSnapshot
from distrl.replay.table.rate_limiter import RateLimiter
from distrl.replay.table.ring import Ring
from distrl.types import Sample, Trajectory


class _QueueCounts:
    """The counts of a queue, which has no limits."""

    limits: RateLimits | None = None

    def __init__(self) -> None:
        self.size = self.inserts = self.samples = 0


class LocalQueue:
    """Blocks in insertion order; a block that is exactly one batch is never copied."""

    def __init__(self, columns: Columns, max_size: int):
        self.columns = columns
        self.counts = _QueueCounts()
        self._max_size = max_size
        self._blocks: collections.deque[tuple[Block, int]] = collections.deque()  # with times

    def can_insert(self, count: int) -> int:
        return min(count, self._max_size - self.counts.size)

    def insert(self, block: Block) -> None:
        self._blocks.append((block, time.monotonic_ns()))
        self.counts.size += block.size
        self.counts.inserts += block.size

    def can_sample(self, count: int) -> bool:
        return self.counts.size >= count

    def sample(self, count: int) -> Sample:
        parts = []
        left = count
        while left:
            block, when = self._blocks.popleft()
            if block.size > left:
                block, rest = block.split(left, self.columns.has_time)
                self._blocks.appendleft((rest, when))
            parts.append(block)
            left -= block.size
        counts = self.counts
        keys = np.arange(counts.samples, counts.samples + count, dtype=np.uint64)
        counts.size -= count
        counts.samples += count
        batch = self.columns.join(parts)
        trajectory = self.columns.trajectory(batch, np.ones(count, np.float32))
        return Sample(trajectory, keys, counts.samples)

    def update_priorities(self, keys: npt.NDArray[np.uint64], priorities: npt.NDArray[Any]) -> None:
        """Does nothing: a queue has no priorities."""

    def discard(self, keys: npt.NDArray[np.uint64], oldest: int) -> None:
        """Does nothing: what is sampled from a queue is gone."""

    def priorities(self) -> None:
        """Does nothing: a queue has no priorities."""

    def read(self, indices: slice) -> Block:
        """As `Table.read`."""
        joined = self.columns.join([self.columns.allocate(0), *(b for b, _ in self._blocks)])
        return self.columns.take(joined, np.arange(self.counts.size)[indices])

    def prefill(self, block: Block) -> None:
        """As `Experience.extend`."""
        room = self._max_size - self.counts.size
        reconfigure.check_room(block.size, room)
        self.insert(self.columns.join([block], copy=True))

    def snapshot(self, lock: threading.Condition) -> TableSnapshot:
        """Returns the contents as they are now. Args: lock: the table's, which is held."""
        counts, blocks = self.counts, [block for block, _ in self._blocks]
        return QueueSnapshot(self.columns, blocks, counts.inserts, counts.samples)

    def restore(self, stored: Stored) -> None:
        """As `LocalTable.restore`."""
        now = time.monotonic_ns()
        parts = (stored.read(*part) for part in stored.slices())
        self._blocks = collections.deque((block, now) for block in parts)
        counts = self.counts
        counts.size, counts.inserts, counts.samples = stored.size, stored.inserts, stored.samples

    def inserted(self) -> npt.NDArray[Any]:
        """Returns insertion times as for `Ages.of`."""
        sizes = [block.size for block, _ in self._blocks]
        return np.array([when for _, when in self._blocks], np.int64).repeat(sizes)


class LocalRing:
    """A `Ring` with its data, which is stored by ring index."""

    def __init__(
        self,
        columns: Columns,
        config: ReplayConfig,
        batch_size: int,
        rng: np.random.Generator,
    ):
        self.columns = columns
        self.counts = RateLimiter(config.limits(batch_size))
        self._ring = Ring(config, self.counts, rng)
        self._max_size = config.max_size
        self._fresh_limits = self.counts.limits
        self._sampler = config.sampler
        self._stored = columns.allocate(config.max_size)
        self._inserted = np.zeros(config.max_size, np.int64)

    def reconfigure(self, config: ReplayConfig, batch_size: int) -> None:
        before, self._fresh_limits = self._fresh_limits, config.limits(batch_size)
        self.counts.limits = self.counts.rebased(self._fresh_limits, before)
        self._ring.prepare_change(config)
        self._ring.use(config)
        self._ring.rebuild()

    def can_insert(self, count: int) -> int:
        return self.counts.can_insert(count, self._max_size)

    def read(self, indices: slice) -> Block:
        """As `Table.read`."""
        return self.columns.take(self._stored, self._ring.present()[indices])

    def prefill(self, block: Block) -> None:
        """As `Experience.extend`."""
        limits = self.counts.shifted(block.size)
        self.insert(block)
        self.counts.limits = limits

    def insert(self, block: Block) -> None:
        # In parts that do not wrap around; later unrolls may overwrite earlier ones.
        while block.size:
            first = self.counts.inserts % self._max_size
            count = min(block.size, self._max_size - first)
            part, block = block.split(count, self.columns.has_time)
            self.columns.put(self._stored, slice(first, first + count), part)
            self._inserted[first : first + count] = time.monotonic_ns()
            if self._ring.is_weighted:
                self._ring.prepare(count, part.priorities)
            self._ring.insert(count)

    def can_sample(self, count: int) -> bool:
        return self.counts.can_sample(count)

    def sample(self, count: int) -> Sample:
        draw = self._ring.choose(count, self._sampler, self._unrolls)
        batch = self.columns.take(self._stored, draw.indices)
        self.counts.samples += count
        keys = draw.keys.view(np.uint64)
        return self.columns.sample(batch, draw.probability, keys, self.counts.inserts)

    def _unrolls(self, indices: npt.NDArray[Any]) -> Trajectory:
        ones = np.ones(len(indices), np.float32)
        return self.columns.trajectory(self.columns.take(self._stored, indices), ones)

    def update_priorities(self, keys: npt.NDArray[np.uint64], priorities: npt.NDArray[Any]) -> None:
        self._ring.update_priorities(keys, priorities)

    def discard(self, keys: npt.NDArray[np.uint64], oldest: int) -> None:
        """As `ReplayReader.discard`."""
        count = self._ring.count_outdated(
            oldest, lambda indices: self.columns.versions(self._stored, indices)
        )
        if count:
            self._ring.remove(count)
            self.counts.limits = self.counts.refilled(self._fresh_limits)
        self._ring.update_priorities(keys, np.zeros(len(keys)))

    def priorities(self) -> npt.NDArray[Any] | None:
        return self._ring.priorities()

    def snapshot(self, lock: threading.Condition) -> TableSnapshot:
        """Returns the contents as they are now. Args: lock: the table's, which is held."""
        return RingSnapshot(self.columns, self._stored, self._ring, self._max_size, lock)

    def restore(self, stored: Stored) -> None:
        """As `LocalTable.restore`."""
        keys = stored.keys()
        for start, stop in stored.slices():
            indices = keys[start:stop] % self._max_size
            self.columns.put(self._stored, indices, stored.read(start, stop))
        self._inserted[:] = time.monotonic_ns()
        if stored.priorities is not None:
            self._ring.set_priorities(keys, stored.priorities)
            self._ring.largest = stored.largest
        self._ring.restore(stored.first, stored.inserts)
        self._ring.rng_state = stored.rng
        self.counts.samples = stored.samples
        self.counts.resume(self._fresh_limits, stored.moved)

    def inserted(self) -> npt.NDArray[Any]:
        """As `LocalQueue.inserted`."""
        return self._inserted[self._ring.present()]
