"""Several Reverb servers as one replay for the learner: shards, each with a part of the streams.

What is here samples. An actor writes to one shard only, by a client of that shard, so that the
order of a stream's unrolls is that of one table.

A batch is put together item by item, from all shards: `distrl.replay.shard_choice` says of which
one each is, and what holds of their probabilities.
"""

import collections
import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from distrl.errors import DeadlineExceeded, Stopped
from distrl.replay import table_files
from distrl.replay.buffer import ReplayBuffer, ReplayConfig, checked_priorities
from distrl.replay.columns import Columns
from distrl.replay.experience import Experience
from distrl.replay.fetcher import Fetcher
from distrl.replay.server_calls import ServerSilent
from distrl.replay.shard_choice import PATIENCE, Choice, Item, Standing, by_mass, in_turn
from distrl.replay.table_info import RateLimits, TableInfo
from distrl.replay.waiting import wait_until
from distrl.types import Inference, Sample, TimeStep

_AHEAD = 16  # items of a shard, at most
_KEYS_OF = 64  # batches whose keys' shards are remembered

_LOG = logging.getLogger(__name__)


class Shard(Protocol):
    """A client of one shard: a `ReverbReplayBuffer`, whose methods these are."""

    @property
    def columns(self) -> Columns:
        """Of an unroll."""

    def make_sampler(self) -> Any:
        """For `item`; has a method `Close`."""

    def item(self, sampler: Any) -> Item:
        """The next item."""

    def watch(self) -> Callable[[], None]:
        """A watch over its server."""

    def wait_for_another(self, error: Exception, lost: str) -> None:
        """For a server in the place of one that is gone."""

    def batch(self, items: Sequence[Item]) -> Sample:
        """A sample of these items."""

    def send_priorities(self, keys: np.ndarray, priorities: np.ndarray) -> None:
        """Sets priorities."""

    def reconfigure(self, **changes: object) -> TableInfo:
        """Refuses."""

    @property
    def experience(self) -> Experience:
        """Refuses."""

    def info(self) -> TableInfo:
        """How the table stands."""

    def save(self, folder: Path, timeout: float) -> dict[str, Any]:
        """Writes the table."""

    def close(self) -> None:
        """Ends the client."""


class _Reader:
    """Takes a shard's items ahead, in a thread of its own."""

    def __init__(
        self,
        shard: Shard,
        index: int,
        lock: threading.Lock,
        changed: threading.Condition,
        ahead: int,
    ):
        """Args:
        shard: its client.
        index: of the shard.
        lock: of all readers.
        changed: by which who waits for an item, or an error, is told; of `lock`.
        ahead: items that it takes before they are asked for.
        """
        self.error: Exception | None = None
        self._shard = shard
        self._changed = changed
        self._room = threading.Condition(lock)
        self._ahead = ahead
        self._items: collections.deque[Item] = collections.deque()
        self._last: Item | None = None
        self._since = time.monotonic()
        self._sampler: Any = None
        self._watch: Callable[[], None] | None = None  # while there is nothing
        self._away = False
        self._silent: Exception | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"shard {index}", daemon=True)
        self._thread.start()

    # With `changed` held.

    def standing(self) -> Standing:
        """Now."""
        if self._items:
            return Standing(True, self._last)
        waited = math.inf if self._away else time.monotonic() - self._since
        return Standing(False, self._last, waited)

    def pop(self) -> Item:
        """The first that it has."""
        item = self._items.popleft()
        if not self._items:
            self._since = time.monotonic()
        if 2 * len(self._items) <= self._ahead:  # not for each one: a thread is slow to wake
            self._room.notify()
        return item

    def look(self) -> None:
        """Sees to it that a server that gives nothing because it is gone is noticed."""
        if self._items or self._sampler is None:
            self._watch = None
            return
        if self._watch is None:
            self._watch = self._shard.watch()
        try:
            self._watch()
        except (RuntimeError, ServerSilent) as error:
            self._silent = error
            self._end_sampler()

    def _end_sampler(self) -> None:
        """Ends the wait for its next item."""
        sampler, self._sampler = self._sampler, None
        if sampler is not None:  # this may take seconds, and nobody has to wait for it
            threading.Thread(target=sampler.Close, name="close a sampler", daemon=True).start()

    # In its thread.

    def _run(self) -> None:
        try:
            while not self._closed:
                try:
                    self._take()
                except RuntimeError as error:
                    with self._changed:
                        if self._closed:
                            return
                        self._end_sampler()
                        self._away = True  # nobody waits for it; what it has given stays
                        cause, self._silent = self._silent or error, None
                    self._shard.wait_for_another(cause, "items that were fetched in advance")
        except Exception as error:  # raised where the next item is asked for
            with self._changed:
                self.error = error
                self._changed.notify_all()

    def _take(self) -> None:
        """Takes items until there are no more."""
        sampler = self._shard.make_sampler()
        with self._changed:
            self._sampler = sampler
            self._since, self._away = time.monotonic(), False
        while not self._closed:
            item = self._shard.item(sampler)
            with self._changed:
                while len(self._items) >= self._ahead and not self._closed:
                    self._room.wait(1.0)
                self._items.append(item)
                self._last = item
                self._changed.notify_all()

    def close(self) -> None:
        """Ends the thread."""
        with self._changed:
            self._closed = True
            self._room.notify()
            self._end_sampler()
        self._thread.join(1.0)


class ShardedReplayBuffer(ReplayBuffer):
    """The learner's client of all shards of a table.

    What is fetched ahead counts as sampled: a batch in Reverb's samplers, split over the shards; up
    to 16 items of each shard, and one more; and `prefetch` batches put together. A shard whose
    server is gone is done without until there is another; if none comes, that is an error.
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
        prefetch: int = 1,
    ):
        """Args:
        shards: clients, each of one shard's table; closed with this one.
        config: of all shards together.
        batch_size: unrolls of a sample.
        seed: of the choice of shards.
        stop: set when the program stops; ends waits.
        unrolls_per_item: as the shards'; it divides `batch_size`.
        prefetch: batches put together before they are asked for.
        """
        self._shards = tuple(shards)
        self._config = config
        self._count = batch_size // unrolls_per_item
        self._per_item = unrolls_per_item
        self._stop = stop
        self._prefetch = prefetch
        self._ahead = max(1, min(_AHEAD, self._count // (2 * len(self._shards))))
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._choose: Choice
        if config.table == "queue":
            self._choose = in_turn(len(self._shards))
        else:
            exponent = config.priority_exponent if self.is_prioritized else 0.0
            patience = PATIENCE if config.samples_per_insert is None else 0.0
            self._choose = by_mass(exponent, patience, np.random.default_rng(seed))
        self._readers: list[_Reader] = []
        self._fetcher: Fetcher[tuple[Sample, list[int]]] | None = None
        self._shard_of: dict[int, int] = {}  # by key, the oldest first
        self._closed = False

    @property
    def is_prioritized(self) -> bool:
        return self._config.table == "prioritized"

    def needs_state(self, stream_ids: np.ndarray, life: int | None = None) -> bool:
        raise self._no_actors()

    def add(
        self, stream_ids: np.ndarray, timestep: TimeStep, inference: Inference, life: int = 0
    ) -> None:
        raise self._no_actors()

    def flush(self) -> None:
        raise self._no_actors()

    @staticmethod
    def _no_actors() -> TypeError:
        return TypeError("a client of all shards samples; an actor adds by a client of its own one")

    def sample(self, timeout: float | None) -> Sample:
        self._check_open()
        try:
            sample, shards = self._started().take(timeout, self._stop, lambda: None)
        except DeadlineExceeded as error:
            raise DeadlineExceeded(f"{error}: {self._describe()}") from None
        except RuntimeError as error:
            if isinstance(error.__cause__, Stopped | DeadlineExceeded):
                raise error.__cause__ from None
            raise
        if self.is_prioritized:
            self._remember(sample.key, shards)
        return sample

    def _started(self) -> Fetcher[tuple[Sample, list[int]]]:
        if self._fetcher is None:
            self._readers = [
                _Reader(shard, i, self._lock, self._changed, self._ahead)
                for i, shard in enumerate(self._shards)
            ]
            self._fetcher = Fetcher(lambda: None, self._assemble, self._prefetch, "all shards")
        return self._fetcher

    def _assemble(self, _: None) -> tuple[Sample, list[int]]:
        """The next batch, and the shard of each item."""
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
        return self._shards[0].batch(items), shards

    def _pick(self, items: list[Item], shards: list[int]) -> bool:
        """Adds what there is to a batch; False where there is nothing."""
        if self._closed:
            raise Stopped("this client of all shards is closed")
        for reader in self._readers:
            if reader.error is not None:
                raise reader.error
            reader.look()
        before = len(items)
        while len(items) < self._count:
            found = self._choose([reader.standing() for reader in self._readers])
            if found is None:
                break
            index, share = found
            item = self._readers[index].pop()
            items.append(item._replace(probability=share * item.probability))
            shards.append(index)
        return len(items) > before

    def _remember(self, keys: np.ndarray, shards: Sequence[int]) -> None:
        known = self._shard_of
        for key, shard in zip(keys[:: self._per_item].tolist(), shards, strict=True):
            known.pop(key, None)
            known[key] = shard
        while len(known) > _KEYS_OF * self._count:
            del known[next(iter(known))]

    def update_priorities(self, keys: np.ndarray, priorities: np.ndarray) -> None:
        keys, priorities = checked_priorities(keys, priorities)
        if not self.is_prioritized:
            return
        self._check_open()
        # Keys of long ago go to all shards: who does not have one passes it over.
        origin = np.array([self._shard_of.get(key, -1) for key in keys.tolist()], np.int64)
        for i, shard in enumerate(self._shards):
            its = (origin == i) | (origin == -1)
            if not its.any():
                continue
            try:
                shard.send_priorities(keys[its], priorities[its])
            except (RuntimeError, ServerSilent) as error:  # its reader waits for another server
                _LOG.warning("%d priorities are lost: %s", its.sum(), error)

    def can_sample(self) -> bool:
        return not self._closed and self._started().ready()

    def reconfigure(self, **changes: object) -> TableInfo:
        return self._shards[0].reconfigure(**changes)

    @property
    def experience(self) -> Experience:
        return self._shards[0].experience

    def infos(self) -> list[TableInfo]:
        """How each shard stands."""
        return [shard.info() for shard in self._shards]

    def info(self) -> TableInfo:
        """How the shards stand together."""
        infos = self.infos()
        limits = None
        if all(info.limits is not None for info in infos):
            its = [info.limits for info in infos if info.limits is not None]
            limits = RateLimits(
                its[0].samples_per_insert,
                sum(each.min_size_to_sample for each in its),
                sum(each.min_diff for each in its),
                sum(each.max_diff for each in its),
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
        """Each shard's counts, or why there are none, for a message."""
        found = []
        for shard in self._shards:
            try:
                found.append(str(shard.info()))
            except (DeadlineExceeded, Stopped, RuntimeError) as error:
                found.append(str(error))
        return "; ".join(found)

    def save(self, folder: Path, timeout: float) -> dict[str, Any]:
        """As `ReplayBuffer.save`: each shard in a folder of its number, one after the other."""
        self._check_open()
        deadline = time.monotonic() + timeout
        folder.mkdir()
        saved = []
        for i, shard in enumerate(self._shards):
            left = max(1.0, deadline - time.monotonic())
            saved.append(shard.save(folder / str(i), left))
        counts = {
            name: sum(each[name] for each in saved) for name in ("size", "inserts", "samples")
        }
        table_files.write_facts(
            folder,
            "reverb",
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
        if self._fetcher is not None:
            self._fetcher.close()

    def _check_open(self) -> None:
        if self._closed:
            raise Stopped("this client of all shards is closed")
