"""The learner's replay over several servers: shards, each with some of the streams.

An actor writes to one shard only, with a client of that shard, so that a stream's unrolls are in
order. A batch is assembled item by item from all shards: `shard_choice` chooses the shard of each.
"""

import logging
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from distrl.errors import DeadlineExceeded, ServerSilent, Stopped
from distrl.replay.buffer import ReplayAdministration, ReplayReader, checked_priorities
from distrl.replay.config import RateLimits, ReplayConfig
from distrl.replay.remote.fetched import FetchedBatches
from distrl.replay.remote.fetcher import Fetcher
from distrl.replay.remote.insert_count import InsertCount
from distrl.replay.remote.items import Item
from distrl.replay.remote.shard_choice import MAX_WAIT, ShardChooser, by_mass, round_robin
from distrl.replay.remote.shard_reader import Shard, ShardReader
from distrl.replay.table import files
from distrl.replay.table.info import TableInfo
from distrl.replay.table.waiting import wait_until
from distrl.types import Sample

_AHEAD = 16  # maximum number of items of a shard to fetch ahead
_KEYS_OF = 64  # number of batches for whose keys the shard is remembered

_LOG = logging.getLogger(__name__)


class ShardedReplayBuffer(ReplayReader, ReplayAdministration):
    """The learner's client of all shards of a table.

    Items fetched ahead count as sampled: a batch in the servers' samplers, split over the shards;
    up to 17 items of each shard; and an assembled batch. A shard whose server is gone is
    left out until it has a new one; if that does not come in time, it is an error.
    """

    def __init__(
        self,
        shards: Sequence[Shard],
        config: ReplayConfig,
        batch_size: int,
        *,
        seed: int,
        stop: threading.Event | None = None,
        unrolls_per_item: int = 1,
    ):
        """Args:
        shards: a client of each shard's table; closed with this one.
        config: settings of all shards together.
        batch_size: unrolls per sample.
        seed: seed of the choice of shards.
        stop: set when the program stops; ends waits.
        unrolls_per_item: the shards' unrolls per item; divides `batch_size`.
        """
        self._shards = tuple(shards)
        self._config = config
        self._count = batch_size // unrolls_per_item
        self._per_item = unrolls_per_item
        self._stop = stop
        self._ahead = max(1, min(_AHEAD, self._count // (2 * len(self._shards))))
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._choose: ShardChooser
        if config.table == "queue":
            self._choose = round_robin(len(self._shards))
        else:
            max_wait = MAX_WAIT if config.samples_per_insert is None else 0.0
            self._choose = by_mass(max_wait, np.random.default_rng(seed))
        self._readers: list[ShardReader] = []
        self._batches: FetchedBatches[tuple[Sample, list[int]]] = FetchedBatches(
            self._fetch, self.info, self._describe, batch_size, stop
        )
        self._shard_of: dict[int, int] = {}  # by key, in order of sampling
        self._inserts = InsertCount(self.info, config.table == "queue")
        self._closed = False

    @property
    def is_prioritized(self) -> bool:
        return any(shard.is_prioritized for shard in self._shards)

    def sample(self, timeout: float | None) -> Sample:
        self._check_open()
        sample, shards = self._batches.take(timeout)
        if self.is_prioritized:
            self._remember(sample.key, shards)
        return sample

    def _fetch(self) -> Fetcher[tuple[Sample, list[int]]]:
        self._readers = [
            ShardReader(shard, i, self._lock, self._changed, self._ahead)
            for i, shard in enumerate(self._shards)
        ]
        return Fetcher(lambda: None, self._assemble, "all shards")

    def _assemble(self, _: None) -> tuple[Sample, list[int]]:
        """Returns the next batch and the shard of each item."""
        items: list[Item] = []
        shards: list[int] = []
        with self._changed:
            while len(items) < self._count:
                wait_until(
                    self._changed,
                    lambda: self._pick(items, shards),
                    stop=self._stop,
                    timeout=None,
                    what=lambda: "a batch waits for items of all shards",
                )
        return self._shards[0].batch(items)._replace(inserts=self._inserts()), shards

    def _pick(self, items: list[Item], shards: list[int]) -> bool:
        """Adds available items to a batch; returns False if there are none."""
        if self._closed:
            raise Stopped("this client of all shards is closed")
        for reader in self._readers:
            if reader.error is not None:
                raise reader.error
            reader.check_server()
        before = len(items)
        while len(items) < self._count:
            chosen = self._choose([reader.status() for reader in self._readers])
            if chosen is None:
                break
            index, probability = chosen
            item = self._readers[index].pop()
            items.append(item._replace(probability=probability * item.probability))
            shards.append(index)
        return len(items) > before

    def _remember(self, keys: npt.NDArray[np.uint64], shards: Sequence[int]) -> None:
        known = self._shard_of
        for key, shard in zip(keys[:: self._per_item].tolist(), shards, strict=True):
            known.pop(key, None)
            known[key] = shard
        while len(known) > _KEYS_OF * self._count:
            del known[next(iter(known))]

    def update_priorities(self, keys: npt.NDArray[np.uint64], priorities: npt.NDArray[Any]) -> None:
        keys, priorities = checked_priorities(keys, priorities)
        if not self.is_prioritized or self._config.priority_of is not None:
            return
        self._check_open()
        # Old keys are sent to all shards; a shard ignores keys that it does not have.
        largest = np.max(priorities, initial=0.0)
        origin = np.array([self._shard_of.get(key, -1) for key in keys.tolist()], np.int64)
        for i, shard in enumerate(self._shards):
            selected = (origin == i) | (origin == -1)
            try:  # also without keys: new unrolls of each shard get the largest of all shards
                shard.send_priorities(keys[selected], priorities[selected], largest)
            except (RuntimeError, ServerSilent) as error:  # its reader waits for a new server
                _LOG.warning("%d priorities are lost: %s", selected.sum(), error)

    def discard(self, keys: npt.NDArray[np.uint64], oldest: int) -> None:
        for shard in self._shards:  # a shard ignores keys that it does not have
            try:
                shard.remove(keys, oldest)
            except (RuntimeError, ServerSilent) as error:  # its reader waits for a new server
                _LOG.warning("%d unrolls may be sampled once more: %s", len(keys), error)

    def can_sample(self) -> bool:
        return not self._closed and self._batches.ready()

    def has_more(self) -> bool:
        return self._batches.has_more()

    def infos(self) -> list[TableInfo]:
        """Returns each shard's counts and limits."""
        return [shard.info() for shard in self._shards]

    def info(self) -> TableInfo:
        """Returns the sums of the shards' counts and limits."""
        infos = self.infos()
        limits = None
        if all(info.limits is not None for info in infos):
            each = [info.limits for info in infos if info.limits is not None]
            limits = RateLimits(
                each[0].samples_per_insert,
                sum(shard.min_size_to_sample for shard in each),
                sum(shard.min_diff for shard in each),
                sum(shard.max_diff for shard in each),
            )
        return TableInfo(
            " + ".join(info.name for info in infos),
            sum(info.size for info in infos),
            sum(info.max_size for info in infos),
            sum(info.inserts for info in infos),
            sum(info.samples for info in infos),
            limits,
        )

    def _describe(self) -> str:
        """Returns each shard's counts for a message, or why there are none."""
        texts = []
        for shard in self._shards:
            try:
                texts.append(str(shard.info()))
            except (DeadlineExceeded, Stopped, RuntimeError) as error:
                texts.append(str(error))
        return "; ".join(texts)

    def save(self, folder: Path, timeout: float) -> dict[str, Any]:
        """As `ReplayAdministration.save`: one shard after the other, in numbered folders."""
        self._check_open()
        deadline = time.monotonic() + timeout
        folder.mkdir()
        saved = []
        for i, shard in enumerate(self._shards):
            left = max(1.0, deadline - time.monotonic())
            saved.append(shard.save(folder / str(i), left))
        counts = {
            name: sum(shard[name] for shard in saved) for name in ("size", "inserts", "samples")
        }
        files.write_facts(
            folder,
            self._shards[0].kind,
            self._shards[0].columns,
            self._config,
            {**counts, "unrolls_per_item": self._per_item, "num_shards": len(self._shards)},
        )
        return counts

    def close(self) -> None:
        self._closed = True
        with self._changed:
            self._changed.notify_all()
        for reader in self._readers:
            reader.close()
        for shard in self._shards:
            shard.close()
        self._batches.close()

    def _check_open(self) -> None:
        if self._closed:
            raise Stopped("this client of all shards is closed")
