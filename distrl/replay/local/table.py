"""A table in this process."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from distrl.replay.columns import Block, Columns
from distrl.replay.config import ReplayConfig
from distrl.replay.local.stores import LocalQueue, LocalRing
from distrl.replay.table import files, reconfigure
from distrl.replay.table.files import Stored
from distrl.replay.table.info import Contents, TableInfo, Wait
from distrl.replay.table.waiting import wait_until
from distrl.types import Sample, Trajectory


class LocalTable:
    """A table that `LocalReplayBuffer`s share. Thread safe."""

    def __init__(
        self,
        struct: Trajectory,
        config: ReplayConfig,
        batch_size: int,
        name: str = "replay",
        seed: int | None = None,
        streams: int = 1,
    ):
        """Args:
        struct: one stream at one step, from `distrl.specs.trajectory_struct`.
        config: checked against `batch_size` here.
        batch_size: unrolls per sample.
        name: the name in messages.
        seed: seed of the sampling; None: a random one.
        streams: see `ReplayConfig.check`.
        """
        config.check(batch_size, streams)
        self._config = config
        self._streams = streams
        self._batch_size = batch_size
        self._name = name
        columns = Columns(struct, config.unroll_length)
        self._store: LocalQueue | LocalRing
        if config.table == "queue":
            self._store = LocalQueue(columns, config.max_size)
        else:
            self._store = LocalRing(columns, config, batch_size, np.random.default_rng(seed))
        self._waits: dict[tuple[threading.Thread, str], float] = {}  # start times
        lock = threading.Lock()
        self._has_room = threading.Condition(lock)
        self._has_samples = threading.Condition(lock)

    def check_client(self, config: ReplayConfig, batch_size: int) -> None:
        """Raises ConfigError if a client's settings differ from the table's."""
        reconfigure.check_client(self._name, self._config, self._batch_size, config, batch_size)

    def insert(self, block: Block, stop: threading.Event | None, timeout: float) -> None:
        """Inserts the unrolls of `block` in order, as soon as there is room.

        Raises:
          Stopped, DeadlineExceeded: the remaining unrolls were not inserted.
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
                with self._waiting("room"):
                    wait_until(
                        self._has_room,
                        lambda: self._store.can_insert(1) > 0,
                        stop=stop,
                        timeout=timeout,
                        what=self._describe("an insert waits for room"),
                    )

    def sample(self, stop: threading.Event | None, timeout: float | None) -> Sample:
        """Returns a batch. Raises as `ReplayReader.sample`."""
        with self._has_samples:
            if not self._can_sample():
                with self._waiting("samples"):
                    wait_until(
                        self._has_samples,
                        self._can_sample,
                        stop=stop,
                        timeout=timeout,
                        what=self._describe(f"a batch of {self._batch_size} waits for samples"),
                    )
            sample = self._store.sample(self._batch_size)
            self._has_room.notify_all()
        return sample

    @contextlib.contextmanager
    def _waiting(self, what: str) -> Iterator[None]:
        """Lists this thread among the table's waits."""
        thread = threading.current_thread()
        self._waits[thread, what] = time.monotonic()
        try:
            yield
        finally:
            del self._waits[thread, what]

    def _describe(self, wait: str) -> Callable[[], str]:
        return lambda: f"{wait}: {self._info()}"

    def _can_sample(self) -> bool:
        return self._store.can_sample(self._batch_size)

    def can_sample(self) -> bool:
        """Returns whether `sample` would return without waiting."""
        return self._can_sample()  # a single comparison, which needs no lock

    @property
    def is_prioritized(self) -> bool:
        """Whether the table currently samples by priority."""
        return self._config.table == "prioritized"

    def reconfigure(self, **changes: object) -> TableInfo:
        """As `distrl.replay.shared.table.SharedTable.reconfigure`."""
        with self._has_samples:
            new = reconfigure.changed(self._config, changes, self._batch_size, self._streams)
            assert isinstance(self._store, LocalRing)  # `changed` refuses a queue
            self._store.reconfigure(new, self._batch_size)
            self._config = new
            self._has_samples.notify_all()
            self._has_room.notify_all()
            return self._info()

    def update_priorities(self, keys: npt.NDArray[np.uint64], priorities: npt.NDArray[Any]) -> None:
        """As `Table.update_priorities`."""
        with self._has_samples:
            self._store.update_priorities(keys, priorities)

    def discard(self, keys: npt.NDArray[np.uint64], oldest: int) -> None:
        """As `ReplayReader.discard`."""
        with self._has_samples:
            self._store.discard(keys, oldest)
            self._has_room.notify_all()

    def _info(self) -> TableInfo:
        counts = self._store.counts
        now = time.monotonic()
        return TableInfo(
            self._name,
            counts.size,
            self._config.max_size,
            counts.inserts,
            counts.samples,
            counts.limits,
            tuple(Wait(t.name, what, now - since) for (t, what), since in self._waits.items()),
        )

    @property
    def columns(self) -> Columns:
        """The columns of its unrolls."""
        return self._store.columns

    def read(self, indices: slice) -> Block:
        """As `Table.read`."""
        with self._has_samples:
            return self._store.read(indices)

    def prefill(self, block: Block) -> None:
        """As `Experience.extend`."""
        with self._has_samples:
            self._store.prefill(block)
            self._has_samples.notify_all()

    def info(self) -> TableInfo:
        """Returns the table's counts and limits."""
        with self._has_samples:
            return self._info()

    def save(self, config: ReplayConfig, folder: Path, timeout: float) -> dict[str, Any]:
        """As `Table.save`."""
        with self._has_samples:
            snapshot = self._store.snapshot(self._has_samples)
            limits = self._store.counts.limits
            snapshot.facts.update(files.limit_facts(self._config, self._batch_size, limits))
        return files.save(snapshot, config, folder)

    def restore(self, stored: Stored) -> None:
        """Loads a saved table; nothing may have been inserted yet."""
        with self._has_samples:
            self._store.restore(stored)
            self._has_samples.notify_all()

    def contents(self) -> Contents:
        """Returns sizes in bytes, the sampler, ages, and a histogram of the priorities."""
        with self._has_samples:
            config, priorities = self._config, self._store.priorities()
            inserted = self._store.inserted()
        unroll_bytes = self._store.columns.nbytes(1)
        return Contents.of(unroll_bytes, config.max_size, config.sampling, inserted, priorities)
