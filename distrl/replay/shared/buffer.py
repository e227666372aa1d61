"""Replay in shared memory: many writers and readers on one machine, of which any may die.

An insert takes free slots of a `SharedTable`, copies into them, and commits them; a sample chooses
slots and copies out of them. Only the choosing is done under the lock, the copying is not:

- slots that are written to belong to their writer until it commits them, or dies;
- those of a queue that are read belong to their reader, and if it dies they are to be read again;
- those of other tables may be overwritten while they are read. Who reads them looks afterwards
  whether their keys are still the same, and chooses others for those that are not.

There are more slots than `max_size`, by an eighth or a batch, for what is just written or read.
What is being written counts as inserted for the rate limiter, so that bounds hold at any time.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from distrl.errors import ConfigError, SpecError
from distrl.replay.client import TableReplayBuffer
from distrl.replay.columns import Block, Columns
from distrl.replay.config import ReplayConfig
from distrl.replay.sampler import Sampler
from distrl.replay.shared import clients
from distrl.replay.shared.segment import Process
from distrl.replay.shared.slots import QueueSlots, RingSlots, Slots
from distrl.replay.shared.snapshot import SharedSnapshot, restore_rng
from distrl.replay.shared.table import SharedTable
from distrl.replay.table import reconfigure
from distrl.replay.table.files import TableSnapshot
from distrl.replay.table.info import TableInfo
from distrl.replay.table.waiting import wait_until
from distrl.types import Sample, Trajectory

_LOOK = 0.5  # seconds of waiting after which a wait looks who is dead
_PREFILL_TIMEOUT = 60.0  # seconds: only other writers' copies can be in the way
_TRIES = 3  # samples that were overwritten while they were copied, before one is copied locked


class _Door:
    """Waits at a table for what one of its events tells, for `wait_until`."""

    def __init__(self, table: SharedTable, what: int):
        self._table = table
        self._what = what
        self._event = table.events[what]
        self._began = self._looked = time.monotonic()

    def wait(self, timeout: float) -> None:
        """Waits for the event, without the lock. Takes back what dead clients had."""
        table = self._table
        seen = self._event.read()
        dead: list[tuple[int, Process]] = []
        looked = False
        table.lock.release()
        try:
            changed = self._event.wait(seen, timeout)
            if not changed and time.monotonic() - self._looked > _LOOK:
                looked = True
                table.check_owner()
                dead = table.members.dead()
        finally:
            table.lock.acquire()
        table.check_open()
        if dead:
            table.take_back(dead)
        if looked:
            self._looked = time.monotonic()
            table.check_can_end(self._what, self._looked - self._began)


class _Client:
    """A place at a table: what of its slots is whose is told by its number."""

    def __init__(self, table: SharedTable, struct: Trajectory, sampler: Sampler | None):
        self._table = table
        self._sampler = sampler
        self.columns = self._columns = Columns(struct, table.config.unroll_length)
        try:
            self._stored = self._columns.unpack(table.data, table.slots)
        except SpecError as error:
            raise SpecError(f"table {table.name!r}: {error}") from None
        with table.lock:
            dead = table.members.dead()
            if dead:
                table.take_back(dead)
            self._number = table.members.join(Process.this())
        self._roles: set[int] = set()  # that the table knows of

    def insert(self, block: Block, stop: threading.Event | None, timeout: float) -> None:
        """As `distrl.replay.table.experience.Table.insert`."""
        self._insert(block, stop, timeout, self._table.store.can_insert)

    def prefill(self, block: Block) -> None:
        """As `distrl.replay.table.experience.Experience.extend`."""
        store = self._table.store
        if isinstance(store, QueueSlots):
            with self._table.lock:
                reconfigure.check_room(block.size, max(0, store.room(block.size)))
        self._insert(block, None, _PREFILL_TIMEOUT, store.room, free=True)

    def read(self, indices: slice) -> Block:
        """As `distrl.replay.table.experience.Table.read`."""
        with self._table.lock:
            return self._columns.take(self._stored, self._table.store.present()[indices])

    def _insert(
        self,
        block: Block,
        stop: threading.Event | None,
        timeout: float,
        may: Callable[[int], int],
        free: bool = False,
    ) -> None:
        """Args:
        may: how many of so many unrolls may be inserted.
        free: they do not count for the rates.
        """
        table = self._table
        store: Slots = table.store
        while block.size:
            slots = None
            try:
                with table.lock:
                    self._ask(clients.ROOM)
                    count = may(block.size)
                    # Below 0 where what a dead reader had taken came back to a full queue.
                    if count <= 0:
                        self._wait(
                            clients.ROOM,
                            lambda: may(1) > 0,
                            "an insert waits for room",
                            stop,
                            timeout,
                        )
                        count = may(block.size)
                    slots = store.reserve(self._number, count)
                    if not free:
                        table.note_error(inserted=True)
                part, rest = block, None
                if len(slots) < block.size:
                    part, rest = block.split(len(slots), self._columns.has_time)
                self._columns.put(self._stored, _run(slots), part)
                with table.lock:
                    if free:
                        table.move_bounds(len(slots))
                    store.commit(slots)
                    slots = None
                    whom = table.changed()
            finally:
                if slots is not None:
                    with table.lock:
                        store.release(self._number, slots)
            table.wake(whom)
            if rest is None:
                return
            block = rest

    def sample(self, stop: threading.Event | None, timeout: float | None) -> Sample:
        """As `distrl.replay.table.experience.Table.sample`."""
        store = self._table.store
        if isinstance(store, QueueSlots):
            return self._take(store, stop, timeout)
        return self._choose(store, stop, timeout)

    @contextlib.contextmanager
    def _when_there_is_a_batch(
        self, stop: threading.Event | None, timeout: float | None
    ) -> Iterator[None]:
        """Holds the lock when a batch may be sampled; wakes who waits for that."""
        table = self._table
        with table.lock:
            self._wait(
                clients.SAMPLES,
                table.can_sample,
                f"a batch of {table.batch_size} waits for samples",
                stop,
                timeout,
            )
            yield
            table.note_error(inserted=False)
            whom = table.changed()
        table.wake(whom)

    def _take(
        self, store: QueueSlots, stop: threading.Event | None, timeout: float | None
    ) -> Sample:
        table, count = self._table, self._table.batch_size
        slots = None
        try:
            with self._when_there_is_a_batch(stop, timeout):
                slots, keys = store.take(self._number, count)
            batch = self._columns.take(self._stored, slots)
            with table.lock:
                store.done(slots)
                slots = None
                whom = table.changed()
        finally:
            if slots is not None:
                with table.lock:
                    store.give_back(self._number, slots)
        table.wake(whom)
        trajectory = self._columns.trajectory(batch, np.ones(count, np.float32))
        return Sample(trajectory, keys.astype(np.uint64))

    def _choose(
        self, store: RingSlots, stop: threading.Event | None, timeout: float | None
    ) -> Sample:
        table, columns = self._table, self._columns
        with self._when_there_is_a_batch(stop, timeout):
            slots, choice = store.choose(table.batch_size, self._sampler)
            store.counts.samples += table.batch_size
        batch = columns.take(self._stored, slots)
        for attempt in range(_TRIES):
            with table.lock:
                late = np.flatnonzero(store.overwritten(slots, choice.keys))
                if len(late) == 0:
                    break
                self._wait(  # the death of a writer may have emptied a small table
                    clients.SAMPLES,
                    lambda: store.size > 0,
                    "a batch waits for what is there",
                    stop,
                    timeout,
                )
                slots[late], again = store.choose(len(late), self._sampler)
                choice.keys[late] = again.keys
                choice.probability[late] = again.probability
                if attempt == _TRIES - 1:  # with the lock held: nobody writes there meanwhile
                    columns.put(batch, late, columns.take(self._stored, slots[late]))
                    break
            columns.put(batch, late, columns.take(self._stored, slots[late]))
        return Sample(columns.trajectory(batch, choice.probability), choice.keys.astype(np.uint64))

    def _ask(self, what: int) -> None:
        """Notes, holding the lock, what this client asks the table for, which must be open."""
        table = self._table
        table.check_open()
        if what not in self._roles:
            self._roles.add(what)
            table.take_role(self._number, what)

    def _wait(
        self,
        what: int,
        done: Callable[[], bool],
        who: str,
        stop: threading.Event | None,
        timeout: float | None,
    ) -> None:
        """Waits, holding the lock, until `done`."""
        table = self._table
        self._ask(what)
        if done():
            return
        table.members.note(self._number, what, True)
        try:
            wait_until(
                _Door(table, what),
                done,
                stop=stop,
                timeout=timeout,
                what=lambda: f"{who}: {table.describe()}",
            )
        finally:
            table.members.note(self._number, what, False)

    def wait_for_counts(
        self,
        done: Callable[[int, int], bool],
        what: str,
        stop: threading.Event | None,
        timeout: float | None,
    ) -> None:
        """Waits until `done(inserts, samples)`."""
        info = self._table.current_info
        with self._table.lock:
            self._wait(
                clients.ROOM,  # whose waits hear of every change
                lambda: done(*info()[3:5]),
                what,
                stop,
                timeout,
            )

    def update_priorities(self, keys: np.ndarray, priorities: np.ndarray) -> None:
        """As `distrl.replay.table.experience.Table.update_priorities`."""
        store = self._table.store
        if isinstance(store, RingSlots):
            with self._table.lock:
                store.ring.update_priorities(keys, priorities)

    def can_sample(self) -> bool:
        """True where `sample` would not wait."""
        table = self._table
        if table.lock.behind:
            with table.lock:
                return table.can_sample()
        return table.can_sample()

    @property
    def is_prioritized(self) -> bool:
        """Whether the table samples by priority, now."""
        return self._table.config.table == "prioritized"

    def reconfigure(self, **changes: object) -> TableInfo:
        """As `SharedTable.reconfigure`."""
        return self._table.reconfigure(**changes)

    def info(self) -> TableInfo:
        """How the table stands."""
        return self._table.info()

    def snapshot(self) -> TableSnapshot:
        """The table as it is now, to be saved while it goes on."""
        return SharedSnapshot(self._table, self._columns, self._stored)

    def leave(self) -> None:
        """Gives back what it has."""
        table = self._table
        with table.lock:
            if table.store.holds(self._number):
                table.store.repair([self._number])
            table.members.leave(self._number)


def _run(slots: np.ndarray) -> slice | np.ndarray:
    """A slice where the slots lie side by side: that copies faster."""
    first, count = int(slots[0]), len(slots)
    if int(slots[-1]) - first == count - 1 and (count < 3 or bool((np.diff(slots) == 1).all())):
        return slice(first, first + count)
    return slots


def _check_same(table: SharedTable, config: ReplayConfig, batch_size: int) -> None:
    """Raises ConfigError where the client's settings make for another layout than the table's."""
    its = table.config
    for name, mine, there in (
        ("batch_size", batch_size, table.batch_size),
        ("replay.unroll_length", config.unroll_length, its.unroll_length),
        ("replay.max_size", config.max_size, its.max_size),
        ("replay.table", config.table, its.table),
    ):
        either = name == "replay.table" and "queue" not in (mine, there)  # `reconfigure` changes it
        if mine != there and not either:
            raise ConfigError(
                f"table {table.name!r} was made with {name}={there}, and its client has {mine}"
            )


class SharedReplayBuffer(TableReplayBuffer):
    """A client of a `SharedTable`, of the process that makes it: a fork makes its own.

    What it adds is in the table when `add` returns. If its process dies, what it was about to
    insert is not in the table, and what it was about to read from a queue is read by another.
    """

    def __init__(
        self,
        table: SharedTable | str,
        struct: Trajectory,
        config: ReplayConfig,
        batch_size: int,
        stop: threading.Event | None = None,
        insert_timeout: float = 600.0,
        open_timeout: float = 60.0,
    ):
        """Args:
        table: or its name.
        struct: of one stream at one step.
        config: the table's, but for what `reconfigure` can change: the table has that.
        batch_size: the table's.
        stop: set when the program stops; ends waits.
        insert_timeout: seconds that an insert waits for room before it fails.
        open_timeout: seconds to wait until there is a table of this name.

        Raises:
          DeadlineExceeded: there is no such table.
          ConfigError: its sizes are others, or it is a queue and the client's is not.
          SpecError: its struct is another.
        """
        config.check(batch_size)
        if isinstance(table, str):
            table = SharedTable.open(table, open_timeout, stop)
        _check_same(table, config, batch_size)
        self._client = _Client(table, struct, config.sampler)
        super().__init__(self._client, struct, config, stop, insert_timeout)
        self._shared = table

    def restore_rng(self, saved: Path) -> None:
        """Goes on with the choice of samples of the client that called `save`.

        Args:
          saved: what it wrote.
        """
        restore_rng(self._shared, saved)

    def wait_for_counts(
        self, done: Callable[[int, int], bool], what: str, timeout: float | None = None
    ) -> None:
        """Waits until `done(inserts, samples)` of the table.

        Args:
          done: asked after each change.
          what: who waits for what, for messages.
          timeout: seconds; None: as long as an insert may wait.

        Raises:
          Stopped, DeadlineExceeded: as `add`.
        """
        self._check_open()
        limit = self._insert_timeout if timeout is None else timeout
        self._client.wait_for_counts(done, what, self._stop, limit)

    def close(self) -> None:
        if not self._closed:
            self._client.leave()
        super().close()
