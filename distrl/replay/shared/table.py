"""A table in shared memory: its creation, and what every process that maps it may do.

The file has a header, a lock, counts, the state of each slot, and the columns of all slots as one
block of unrolls. How data gets in and out is described in `distrl.replay.shared.handle`.
"""

import os
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy.typing as npt

from distrl.errors import PeerError, Stopped
from distrl.replay.columns import Columns
from distrl.replay.config import ReplayConfig
from distrl.replay.shared import clients
from distrl.replay.shared.layout import TableLayout
from distrl.replay.shared.memory import CLOSED, READERS, TableMemory, create_file
from distrl.replay.shared.slots import INSERTS, PENDING, SAMPLES, RingSlots
from distrl.replay.table import reconfigure
from distrl.replay.table.info import Contents, TableInfo
from distrl.shared_memory import segment
from distrl.shared_memory.lock import SharedLock
from distrl.shared_memory.process import Process
from distrl.shared_memory.segment import SharedFile
from distrl.types import Trajectory


class SharedTable:
    """A table in shared memory, as one process sees it. Its owner creates and closes it.

    Attributes:
      name: the table's name.
      config: the table's settings; after `reconfigure`, those when this process last had the lock.
      batch_size: unrolls per sample.
      data: uint8, the unrolls of all slots as one block.
      slots: number of slots.
      store: the slots.
      clients: the table's clients.
      numbered: what the calls of a server's clients have inserted.
      events: the events for which clients wait.
      lock: guards everything but the data.
      reseeds: whether the random generator is reseeded when this process first samples.
    """

    def __init__(self, file: SharedFile, memory: npt.NDArray[Any]):
        """For `create` and `open`.

        Args:
          file: the table's file.
          memory: the file's bytes, with the header.
        """
        parts = TableMemory(memory, file.path)
        self.name = file.name
        self.config = parts.header.config
        self.batch_size = parts.header.batch_size
        self.data, self.slots, self.store = parts.data, parts.slots, parts.store
        self.clients, self.events, self.numbered = parts.clients, parts.events, parts.numbered
        self._file = file
        _, self._custom_sampler, _, _, self._seed, self._schedule = parts.header
        self._ints, self._margins, self._settings = parts.ints, parts.margins, parts.settings
        # No reference cycle: the memory is unmapped when the table is deleted.
        this = weakref.proxy(self)
        self.lock = SharedLock(
            parts.lock_address,
            lambda: this._repair(),
            f"table {self.name!r}",
            lambda number: this._reload(number),
        )
        self._finalizer: Callable[[], object] | None = None
        self.reseeds = True

    @staticmethod
    def check_room(
        struct: Trajectory, config: ReplayConfig, batch_size: int, name: str = "replay"
    ) -> None:
        """Raises ConfigError if this machine has no room for such a table. Arguments: `create`."""
        columns = Columns(struct, config.unroll_length)
        segment.check_room(name, TableLayout(config, batch_size, columns.nbytes).nbytes)

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
        schedule: str = "",
    ) -> "SharedTable":
        """Creates the table; removes tables that crashed programs have left.

        Args:
          struct: one stream at one step, from `distrl.specs.trajectory_struct`.
          config: checked against `batch_size` here.
          batch_size: unrolls per sample.
          name: unique to the program.
          seed: seed of the sampling; None: a random one.
          owner: the process after whose death anyone may remove the table; None: this process.
          saved: folder that `ReplayAdministration.save` wrote, to be loaded; None: empty.
          schedule: the program's schedule of updates: see `reconfigure.check_schedule`.

        Raises:
          ConfigError: the name is in use, there is not enough memory, or another kind of table
            was saved.
          SpecError: the saved unrolls have other columns.
        """
        config.check(batch_size)
        segment.sweep()
        table = cls(*create_file(struct, config, batch_size, name, seed, owner, saved, schedule))
        table._own()
        return table

    @classmethod
    def adopt(cls, name: str) -> "SharedTable":
        """Returns the table of this name, to be closed by this process instead of its creator.

        Raises:
          DeadlineExceeded: there is none.
        """
        table = cls.open(name, timeout=1.0)
        table._own()
        return table

    def _own(self) -> None:
        """Removes the file when this process closes the table, deletes it, or exits."""
        self._finalizer = weakref.finalize(self, _remove, self._file.path, os.getpid())

    @classmethod
    def open(
        cls, name: str, timeout: float = 60.0, stop: threading.Event | None = None
    ) -> "SharedTable":
        """Waits for the table of this name.

        Raises:
          DeadlineExceeded: there was none within `timeout` seconds.
          Stopped: `stop` was set first.
        """
        return cls(*segment.find(name, timeout, stop))

    def reconfigure(self, **changes: object) -> TableInfo:
        """Changes settings of the live table, for all its clients.

        Blocked calls re-check the new limits: see `RateLimiter.rebased`. Priorities stay; of a
        uniform table, all get the initial one. If the caller dies, all or nothing has changed.

        Args:
          **changes: settings of `ReplayConfig` in `distrl.replay.table.reconfigure.CHANGEABLE`.

        Returns:
          The table's counts and new limits.

        Raises:
          ConfigError: the settings could stall, or cannot be changed; nothing was.
          Stopped: the owner has closed the table.
        """
        with self.lock:
            self.check_open()
            reconfigure.check_schedule(self._schedule, changes)
            new = reconfigure.changed(self.config, changes, self.batch_size)
            store = self.store
            assert isinstance(store, RingSlots)  # `changed` refuses a queue
            fresh, before = (one.limits(self.batch_size) for one in (new, self.config))
            limits = store.counts.rebased(fresh, before, self._ints[PENDING])
            store.ring.prepare_change(new)
            self.lock.change(lambda number: self._settings.write(number, new, limits))
            store.ring.rebuild()
            for event in self.events.values():
                event.change()
            info = self.current_info()
        self.wake(list(self.events))
        return info

    def move_bounds(self, count: int) -> None:
        """Exempts `count` reserved unrolls from the rate limiter; with the lock held.

        If the process dies between this and their commit, the other side must make up for them.
        """
        if isinstance(self.store, RingSlots):
            counts = self.store.counts
            limits = counts.shifted(count, self._ints[PENDING] - count)
            if limits != counts.limits:
                self.lock.change(lambda number: self._settings.write(number, self.config, limits))

    def refill(self) -> None:
        """Moves the bounds by `RateLimiter.refilled` after a removal; with the lock held."""
        if isinstance(self.store, RingSlots):
            counts = self.store.counts
            limits = counts.refilled(self.config.limits(self.batch_size), self._ints[PENDING])
            if limits != counts.limits:
                self.lock.change(lambda number: self._settings.write(number, self.config, limits))

    def _reload(self, number: int) -> None:
        """Reads the settings of change `number`; with the lock held."""
        self.config, limits = self._settings.read(number)
        if isinstance(self.store, RingSlots):
            assert limits is not None
            self.store.counts.limits = limits
            self.store.ring.use(self.config)

    def _repair(self) -> None:
        """Repairs the table after a death or an exception; with the lock held."""
        self.take_back(self.clients.dead())

    def take_back(self, dead: list[tuple[int, Process]]) -> None:
        """Removes clients of dead processes and repairs the table; with the lock held."""
        dead = [one for one in dead if self.clients.is_of(*one)]
        self.store.repair([client for client, _ in dead])
        self.numbered.settle(self._ints[INSERTS])
        for client, process in dead:
            self.clients.remove_dead(client, process)
        self.clients.recount()

    def check_open(self) -> None:
        """Raises Stopped if the owner has closed the table."""
        if self._ints[CLOSED]:
            raise Stopped(f"table {self.name!r} was closed by its owner")

    def check_owner(self) -> None:
        """Raises PeerError if the owner has died."""
        if not self._file.creator.lives():
            raise PeerError(
                f"table {self.name!r}: process {self._file.creator.pid}, which made it, is dead"
            )

    def take_role(self, client: int, what: int) -> None:
        """Registers that a client inserts (`ROOM`) or samples (`SAMPLES`); with the lock held."""
        self.clients.take_role(client, what)
        if what == clients.SAMPLES and self.reseeds and isinstance(self.store, RingSlots):
            # Each reader samples differently, depending only on the order of the readers.
            self._ints[READERS] += 1
            self.store.ring.reseed([*self._seed, self._ints[READERS]])

    def count(self, what: int) -> int:
        """Returns one of the numbers in `slots.py`; with the lock held."""
        return self._ints[what]

    def can_sample(self) -> bool:
        """Returns whether `sample` would return without waiting."""
        return self.store.can_sample(self.batch_size)  # needs no lock

    def current_info(self) -> TableInfo:
        """As `info`; with the lock held."""
        limits = self.store.counts.limits if isinstance(self.store, RingSlots) else None
        return TableInfo(
            self.name,
            self.store.size,
            self.config.max_size,
            self._ints[INSERTS],
            self._ints[SAMPLES],
            limits,
            self.clients.waits(),
        )

    def info(self) -> TableInfo:
        """Returns the table's counts and limits."""
        with self.lock:
            return self.current_info()

    def contents(self) -> Contents:
        """Returns sizes in bytes, the sampler, ages, and a histogram of the priorities."""
        with self.lock:
            priorities = None
            if isinstance(self.store, RingSlots):
                priorities = self.store.ring.priorities()
            inserted = self.store.inserted()
            sampler = self._custom_sampler or self.config.sampling
        unroll_bytes = self.data.nbytes // self.slots
        return Contents.of(unroll_bytes, self.slots, sampler, inserted, priorities)

    def describe(self) -> str:
        """Describes the table for messages; with the lock held."""
        pending = self._ints[PENDING]
        return f"{self.current_info()}" + (f"; {pending} are being written" if pending else "")

    def observed_margins(self) -> tuple[float, float]:
        """Returns the smallest distances of the rate limiter's error from its bounds so far.

        Above `min_diff` after a sample, and below `max_diff` when an insert that is not free was
        admitted, by the limits in force at that moment; inf before there was any.
        """
        with self.lock:
            return self._margins.get()

    def note_insert(self) -> None:
        """Updates `observed_margins` when an insert is admitted; with the lock held."""
        if isinstance(self.store, RingSlots):
            self._margins.note_insert(self.store.counts, self._ints[PENDING])

    def sampled(self, store: RingSlots) -> list[int]:
        """As `changed`, after a sample. Updates `observed_margins`."""
        self._margins.note_sample(store.counts)
        return self.changed()

    def changed(self) -> list[int]:
        """Marks the events whose waits may end now; `wake` them after releasing the lock."""
        events, members = [], self.clients
        if members.waiting[clients.ROOM] and self.store.has_room(members.wanted, self.batch_size):
            members.forget_wanted()
            events.append(clients.ROOM)
        if members.waiting[clients.SAMPLES] and self.can_sample():
            events.append(clients.SAMPLES)
        for what in events:
            self.events[what].change()
        return events

    def wake(self, events: list[int]) -> None:
        """Wakes the waits for the events that `changed` returned."""
        for what in events:
            self.events[what].wake(2**31 - 1)

    def close(self) -> None:
        """Ends all waits and removes the table, if this process owns it."""
        if self._finalizer is not None:
            with self.lock:
                self._ints[CLOSED] = 1
                for event in self.events.values():
                    event.change()
            self.wake(list(self.events))
            self._finalizer()


def _remove(path: Path, pid: int) -> None:
    if os.getpid() == pid:  # not in a fork
        path.unlink(missing_ok=True)
