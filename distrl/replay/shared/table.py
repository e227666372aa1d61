"""A table in shared memory: its making, and what all who map it may do.

The file has a header that says what it is, a lock, counts, the state of each slot, and the columns
of all slots as one block of unrolls. How the data gets in and out is told in
`distrl.replay.shared.buffer`.
"""

import dataclasses
import json
import os
import threading
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np

from distrl.errors import Blocked, ConfigError, PeerError, Stopped
from distrl.replay.columns import Block, Columns
from distrl.replay.config import ReplayConfig
from distrl.replay.shared import clients, segment
from distrl.replay.shared.clients import Members
from distrl.replay.shared.layout import HEADER_BYTES, SLOT_ARRAYS, Layout
from distrl.replay.shared.lock import Event, SharedLock
from distrl.replay.shared.segment import Process, SharedFile
from distrl.replay.shared.settings import SharedSettings
from distrl.replay.shared.slots import INSERTS, PENDING, SAMPLES, QueueSlots, RingSlots
from distrl.replay.table import reconfigure
from distrl.replay.table.files import Stored
from distrl.replay.table.info import Contents, TableInfo
from distrl.replay.table.rate_limiter import RateLimiter
from distrl.replay.table.ring import Ring
from distrl.types import Trajectory

_VERSION = "distrl shared table 2"
# Numbers in `ints`; shared_slots.py has the first. `_LOST + what` is the process that was the last
# to ask for it, and died.
_READERS, _CLOSED, _WAITING, _LOST = 8, 9, 10, 16

REPLACED_WITHIN = 30.0  # seconds; who waits for a dead client's successor gives up after them


class SharedTable:
    """A table in shared memory, as one process sees it. Its owner makes it and closes it.

    Attributes:
      name: of the table.
      config: of the table; after `reconfigure`, as it was when this process last had the lock.
      batch_size: of its samples.
    """

    def __init__(self, file: SharedFile, memory: np.ndarray):
        """For `create` and `open`.

        Args:
          file: of the table.
          memory: its bytes, with the header in them.
        """
        header = json.loads(bytes(memory[:HEADER_BYTES]).rstrip(b"\0"))
        if header.get("version") != _VERSION:
            raise ConfigError(f"{file.path} is no {_VERSION}: another version of this program's?")
        self.name = file.name
        self._seed: list[int] = header["seed"]
        self.config = config = ReplayConfig(**header["config"])
        self.batch_size = batch_size = int(header["batch_size"])
        self._file = file
        self._own_sampler: str | None = header["sampler"]
        layout = Layout(config, batch_size, lambda slots: header["data_bytes"])
        views = layout.views(memory)
        self.data, self.slots = views["data"], layout.slots
        self._ints = views["ints"].data.cast("q")
        self._margins = views["margins"].view(np.float64)
        self._settings = SharedSettings(views["settings"])
        rows = views["members"].view(np.int64).reshape(-1, clients.COLUMNS)
        self.members = Members(rows, self._ints[_WAITING:_LOST])
        arrays = {key: views[key].view(np.int64) for key in SLOT_ARRAYS}
        self.store: QueueSlots | RingSlots
        if config.table == "queue":
            self.store = QueueSlots(self._ints, arrays, config.max_size)
        else:
            limiter = RateLimiter(config.limits(batch_size), self._ints)
            sums = views["sums"].view(np.float64)
            rng = np.random.default_rng(header["seed"])
            ring = Ring(config, limiter, rng, sums, views["priorities"].view(np.float64))
            self.store = RingSlots(self._ints, arrays, config.max_size, limiter, ring)
        address = memory.ctypes.data
        self._lock_address = address + layout.offsets["lock"]
        # No cycle: the memory goes when the table does.
        this = weakref.proxy(self)
        self.lock = SharedLock(
            self._lock_address,
            lambda: this._repair(),
            f"table {self.name!r}",
            lambda number: this._reload(number),
        )
        self.events = {
            clients.ROOM: Event(address + layout.offsets["room"]),
            clients.SAMPLES: Event(address + layout.offsets["samples"]),
        }
        self._finalizer: Callable[[], object] | None = None
        self.reseeds = True  # when it first samples

    @staticmethod
    def check_room(
        struct: Trajectory, config: ReplayConfig, batch_size: int, name: str = "replay"
    ) -> None:
        """Raises ConfigError where this machine has no room for such a table. As `create`."""
        columns = Columns(struct, config.unroll_length)
        segment.check_room(name, Layout(config, batch_size, columns.nbytes).nbytes)

    @classmethod
    def create(
        cls,
        struct: Trajectory,
        config: ReplayConfig,
        batch_size: int,
        name: str,
        seed: int | None = None,
        owner: Process | None = None,
        saved: Path | None = None,
    ) -> "SharedTable":
        """Makes the table; removes what crashed programs left before.

        Args:
          struct: of one stream at one step, from `distrl.specs.trajectory_struct`.
          config: checked against `batch_size` here.
          batch_size: unrolls of a sample.
          name: the program's own.
          seed: of the choice of samples; None: a fresh one.
          owner: the table may be removed by anyone when this process is dead; None: this one.
          saved: what `ReplayBuffer.save` wrote; the table begins with it. None: empty.

        Raises:
          ConfigError: the name is in use, or there is not enough memory, or another kind of table
            was saved.
          SpecError: the unrolls that were saved have other columns.
        """
        config.check(batch_size)
        segment.sweep()
        columns = Columns(struct, config.unroll_length)
        layout = Layout(config, batch_size, columns.nbytes)
        header = {
            "version": _VERSION,
            # A sampler is its users' own: processes that do not sample need not have it.
            "config": dataclasses.asdict(dataclasses.replace(config, sampler=None)),
            "sampler": None if config.sampler is None else config.sampling,
            "batch_size": batch_size,
            "data_bytes": layout.sizes["data"],
            "seed": [seed]
            if seed is not None
            else np.random.SeedSequence().generate_state(4).tolist(),
        }
        text = json.dumps(header).encode()
        assert len(text) < HEADER_BYTES
        file = segment.create(name, layout.nbytes, owner or Process.this())
        try:
            memory = file.map()
            memory[: len(text)] = np.frombuffer(text, np.uint8)
            table = cls(file, memory)
            SharedLock.initialise(table._lock_address)
            block = columns.allocate(layout.slots, table.data)
            table._margins[:] = np.inf
            table.store.repair([])
            if saved is not None:
                table._restore(Stored(saved, columns, config), columns, block)
            table._file = file = segment.publish(file)
        except BaseException:
            file.path.unlink(missing_ok=True)
            raise
        table._finalizer = weakref.finalize(table, _remove, file.path, os.getpid())
        return table

    @classmethod
    def adopt(cls, name: str) -> "SharedTable":
        """The table of this name, to be closed by this process in the place of who made it.

        Raises:
          DeadlineExceeded: there is none.
        """
        table = cls.open(name, timeout=1.0)
        table._finalizer = weakref.finalize(table, _remove, table._file.path, os.getpid())
        return table

    @classmethod
    def open(
        cls, name: str, timeout: float = 60.0, stop: threading.Event | None = None
    ) -> "SharedTable":
        """The table of this name, once it is there.

        Raises:
          DeadlineExceeded: there is none after `timeout` seconds.
          Stopped: `stop` was set first.
        """
        return cls(*segment.find(name, timeout, stop))

    def reconfigure(self, **changes: object) -> TableInfo:
        """Changes settings of the table while it is used, for all its clients.

        Who waits is woken, and judged by the new limits. They count from here on: see
        `RateLimiter.rebased`. Priorities stay; in a table that was uniform all are those of new
        unrolls. A process that dies in here has changed all or nothing.

        Args:
          **changes: of `ReplayConfig`: see `distrl.replay.table.reconfigure.CHANGEABLE`.

        Returns:
          how the table stands afterwards.

        Raises:
          ConfigError: they could stall, or cannot be changed; nothing was.
          Stopped: the owner has closed the table.
        """
        with self.lock:
            self.check_open()
            new = reconfigure.changed(self.config, changes, self.batch_size)
            store = self.store
            assert isinstance(store, RingSlots)  # live.changed refuses a queue
            limits = store.counts.rebased(new.limits(self.batch_size), self._ints[PENDING])
            store.ring.prepare_change(new)
            self.lock.change(lambda number: self._settings.write(number, new, limits))
            store.ring.rebuild()
            for event in self.events.values():
                event.change()
            info = self.current_info()
        self.wake(list(self.events))
        return info

    def move_bounds(self, count: int) -> None:
        """That `count` unrolls which are reserved do not count for the rates; holding the lock.

        A process that dies between this and their commit leaves the other side to make up for them.
        """
        if isinstance(self.store, RingSlots):
            counts = self.store.counts
            limits = counts.shifted(count, self._ints[PENDING] - count)
            if limits != counts.limits:
                self.lock.change(lambda number: self._settings.write(number, self.config, limits))

    def _reload(self, number: int) -> None:
        """Takes over the settings after change `number`; holding the lock."""
        self.config, limits = self._settings.read(number)
        if isinstance(self.store, RingSlots):
            assert limits is not None
            self.store.counts.limits = limits
            self.store.ring.use(self.config)

    def _restore(self, stored: Stored, columns: Columns, block: Block) -> None:
        """Takes what was saved, before anyone else has the table."""
        for start, stop in stored.slices():
            columns.put(block, slice(start, stop), stored.read(start, stop))
        if isinstance(self.store, RingSlots) and stored.priorities is not None:
            self.store.ring.set_priorities(stored.keys(), stored.priorities)
        self.store.restore(stored.first, stored.size, stored.samples)

    def _repair(self) -> None:
        """After a death or an exception in the middle of a change; holding the lock."""
        self.take_back(self.members.dead())

    def take_back(self, gone: list[tuple[int, Process]]) -> None:
        """Ends clients whose processes are dead, and makes the table whole; holding the lock."""
        gone = [
            (client, process) for client, process in gone if self.members.is_of(client, process)
        ]
        self.store.repair([client for client, _ in gone])
        for client, process in gone:
            self.members.leave(client)
            for what in (clients.ROOM, clients.SAMPLES):
                if self.members.has_role(client, what):
                    self._ints[_LOST + what] = process.pid
        self.members.recount()

    def check_open(self) -> None:
        """Raises Stopped when the owner has closed the table."""
        if self._ints[_CLOSED]:
            raise Stopped(f"table {self.name!r} was closed by its owner")

    def check_owner(self) -> None:
        """Raises PeerError when the owner has died."""
        if not self._file.creator.lives():
            raise PeerError(
                f"table {self.name!r}: process {self._file.creator.pid}, which made it, is dead"
            )

    def take_role(self, client: int, what: int) -> None:
        """That a client inserts (`ROOM`) or samples (`SAMPLES`); holding the lock."""
        self.members.take_role(client, what)
        self._ints[_LOST + what] = 0
        if what == clients.SAMPLES and self.reseeds and isinstance(self.store, RingSlots):
            # Each reader chooses differently, in an order that who else is there has no part in.
            self._ints[_READERS] += 1
            self.store.ring.reseed([*self._seed, self._ints[_READERS]])

    def check_can_end(self, what: int, waited: float) -> None:
        """Raises Blocked where a wait for `what` will not end; holding the lock.

        A client that died may be replaced, for which there is time.

        Args:
          what: `ROOM` or `SAMPLES`.
          waited: seconds so far.
        """
        other = clients.SAMPLES if what == clients.ROOM else clients.ROOM
        lost = self._ints[_LOST + other]
        if lost and waited > REPLACED_WITHIN and not self.members.any_has_role(other):
            did = "sampled" if other == clients.SAMPLES else "inserted"
            raise Blocked(
                f"process {lost}, which {did}, is dead, and no other does: {self.describe()}"
            )
        if not (self.store.busy() or self.store.can_insert(1) or self.can_sample()):
            raise Blocked(f"neither an insert nor a sample may go on: {self.describe()}")

    def count(self, what: int) -> int:
        """One of `shared_slots`' numbers; holding the lock."""
        return self._ints[what]

    def can_sample(self) -> bool:
        """True where `sample` would not wait."""
        return self.store.can_sample(self.batch_size)  # a lock would make it no truer

    def current_info(self) -> TableInfo:
        """How the table stands; holding the lock."""
        limits = self.store.counts.limits if isinstance(self.store, RingSlots) else None
        return TableInfo(
            self.name,
            self.store.size,
            self.config.max_size,
            self._ints[INSERTS],
            self._ints[SAMPLES],
            limits,
            self.members.waits(),
        )

    def info(self) -> TableInfo:
        """How the table stands."""
        with self.lock:
            return self.current_info()

    def contents(self) -> Contents:
        """What it holds: sizes in bytes, sampler, ages, and a histogram of the priorities."""
        with self.lock:
            priorities = None
            if isinstance(self.store, RingSlots):
                priorities = self.store.ring.priorities()
            inserted = self.store.inserted()
            sampler = self._own_sampler or self.config.sampling
        unroll_bytes = self.data.nbytes // self.slots
        return Contents.of(unroll_bytes, self.slots, sampler, inserted, priorities)

    def describe(self) -> str:
        """For messages; holding the lock."""
        pending = self._ints[PENDING]
        return f"{self.current_info()}" + (f"; {pending} are being written" if pending else "")

    def observed_margins(self) -> tuple[float, float]:
        """How far `inserts * samples_per_insert - samples` was inside of its bounds at the least:
        above `min_diff` after a sample, and below `max_diff` when an insert that is not free was
        let in, by the limits in force at that moment; inf before there was any.
        """
        with self.lock:
            return float(self._margins[0]), float(self._margins[1])

    def note_error(self, inserted: bool) -> None:
        """Keeps `observed_margins`; holding the lock."""
        if isinstance(self.store, RingSlots):
            counts, pending, margins = self.store.counts, self._ints[PENDING], self._margins
            limits = counts.limits
            if not inserted:
                margins[0] = min(margins[0], counts.error - limits.min_diff)
            elif counts.size + pending > limits.min_size_to_sample:
                error = counts.error + pending * limits.samples_per_insert
                margins[1] = min(margins[1], limits.max_diff - error)

    def changed(self) -> list[int]:
        """Looks who waits for what there is now, holding the lock; `wake` them without it."""
        found = []
        if self.members.waiting[clients.ROOM] and self.store.can_insert(1):
            found.append(clients.ROOM)
        if self.members.waiting[clients.SAMPLES] and self.can_sample():
            found.append(clients.SAMPLES)
        for what in found:
            self.events[what].change()
        return found

    def wake(self, whom: list[int]) -> None:
        """Ends the waits that `changed` found."""
        for what in whom:
            self.events[what].wake(2**31 - 1)

    def close(self) -> None:
        """The owner's: ends all waits and removes the table. Of others: nothing."""
        if self._finalizer is not None:
            with self.lock:
                self._ints[_CLOSED] = 1
                for event in self.events.values():
                    event.change()
            self.wake(list(self.events))
            self._finalizer()


def _remove(path: Path, pid: int) -> None:
    if os.getpid() == pid:  # not in a fork
        path.unlink(missing_ok=True)
