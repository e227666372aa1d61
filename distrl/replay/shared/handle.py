"""A client's handle of a table in shared memory: inserts into it and samples from it.

An insert reserves free slots, copies into them, and commits them; a sample chooses slots and copies
out of them. Slots are chosen under the table's lock, data is copied without it:

- Slots being written belong to their writer until it commits them, or dies.
- Slots of a queue being read belong to their reader; if it dies, they are read again.
- Slots of other tables may be overwritten while they are read. The reader checks afterwards whether
  their keys are unchanged, and chooses others for those that are not.

There are more slots than `max_size`, by an eighth or a batch, for unrolls being written or read.
Unrolls being written count as inserted for the rate limiter, so that its bounds always hold.
"""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from distrl.errors import SpecError
from distrl.replay.columns import Batch, Block, Columns, as_slice
from distrl.replay.config import ReplayConfig
from distrl.replay.sampler import Sampler
from distrl.replay.shared import clients
from distrl.replay.shared.call_numbers import Call
from distrl.replay.shared.slots import INSERTS, SAMPLES, QueueSlots, RingSlots, TableSlots
from distrl.replay.shared.snapshot import SharedSnapshot
from distrl.replay.shared.table import SharedTable
from distrl.replay.shared.waits import TableWait
from distrl.replay.table import files, reconfigure
from distrl.replay.table.info import TableInfo
from distrl.replay.table.waiting import wait_until
from distrl.runtime.patience import may_end
from distrl.shared_memory.futex import fence
from distrl.shared_memory.process import Process
from distrl.types import Sample, Trajectory

_PREFILL_TIMEOUT = 60.0  # seconds; a prefill only waits for other writers' copies
_Stop = threading.Event | None
_TRIES = 3  # attempts to copy a sample without the lock, before it is copied with it


class TableHandle:
    """A `Table` for one client; slots in use are marked with the client's number."""

    def __init__(
        self, table: SharedTable, struct: Trajectory, sampler: Sampler | None, name: str = ""
    ):
        """Args:
        table: the table.
        struct: one stream at one step.
        sampler: the client's custom sampler; None: the table's own sampling.
        name: the client's name, for messages; "": the name of its process.
        """
        self._table = table
        self._sampler = sampler
        self._batch_wait = f"a batch of {table.batch_size} waits for samples"
        self.columns = Columns(struct, table.config.unroll_length)
        try:
            self._stored = self.columns.unpack(table.data, table.slots)
        except SpecError as error:
            raise SpecError(f"table {table.name!r}: {error}") from None
        with table.lock:
            dead = table.clients.dead()
            if dead:
                table.take_back(dead)
            self._number = table.clients.join(Process.this(), name)
        self._roles: set[int] = set()  # already registered with the table

    def insert(self, block: Block, stop: _Stop, timeout: float, call: Call | None = None) -> None:
        """As `Table.insert`. Args: call: the inserting call, if it may be repeated."""
        self._insert(block, stop, timeout, call=call)

    def prefill(self, block: Block, call: Call | None = None) -> None:
        """As `Experience.extend`. Args: call: see `insert`."""
        store = self._table.store
        if isinstance(store, QueueSlots):
            with self._table.lock:
                reconfigure.check_room(block.size, max(0, store.room(block.size)))
        self._insert(block, None, _PREFILL_TIMEOUT, exempt=True, call=call)

    def read(self, indices: slice) -> Block:
        """As `Table.read`."""
        with self._table.lock:
            return self.columns.take(self._stored, self._table.store.present()[indices])

    def _insert(
        self,
        block: Block,
        stop: _Stop,
        timeout: float,
        exempt: bool = False,
        call: Call | None = None,
    ) -> None:
        """Inserts a block in as many parts as necessary.

        Args:
          stop, timeout: as for `insert`, while it waits for room.
          exempt: the unrolls do not count for the rate limiter.
          call: see `insert`.
        """
        table = self._table
        store: TableSlots = table.store
        admit = store.room if exempt else store.can_insert  # how many of n unrolls are admitted
        while block.size:
            slots = None
            try:
                with table.lock:
                    self._register(clients.ROOM)
                    count = admit(block.size)
                    # Below 0 if a dead reader's unrolls came back to a full queue.
                    if count <= 0:
                        self._wait_for_room(block.size, exempt, stop, timeout)
                        count = admit(block.size)
                    slots = store.reserve(self._number, count)
                    if not exempt:
                        table.note_insert()
                part, rest = block, None
                if len(slots) < block.size:
                    part, rest = block.split(len(slots), self.columns.has_time)
                self.columns.put(self._stored, as_slice(slots), part)
                with table.lock:
                    if exempt:
                        table.move_bounds(len(slots))
                    if call is not None:
                        row = table.numbered.begin(call, table.count(INSERTS), len(slots))
                    store.commit(slots, part.priorities)
                    if call is not None:
                        table.numbered.end(row, table.count(INSERTS))
                    slots = None
                    events = table.changed()
            finally:
                if slots is not None:
                    with table.lock:
                        store.release(self._number, slots)
            table.wake(events)
            if rest is None:
                return
            block = rest

    def sample(self, stop: threading.Event | None, timeout: float | None) -> Sample:
        """As `Table.sample`."""
        batch = self.sample_block(stop, timeout)
        return self.columns.sample(*batch)

    def sample_block(
        self, stop: _Stop, timeout: float | None, buffer: npt.NDArray[Any] | None = None
    ) -> Batch:
        """As `sample`. Args: buffer: uint8, memory for the block; None: a new buffer."""
        store, out = self._table.store, self.columns.allocate(self._table.batch_size, buffer)
        if isinstance(store, QueueSlots):
            return self._take(store, out, stop, timeout)
        return self._choose(store, out, stop, timeout)

    def _wait_for_batch(self, stop: _Stop, timeout: float | None) -> None:
        """Waits until a batch may be sampled; with the lock held."""
        self._wait(clients.SAMPLES, self._table.can_sample, self._batch_wait, stop, timeout)

    def _take(self, store: QueueSlots, out: Block, stop: _Stop, timeout: float | None) -> Batch:
        table, count = self._table, self._table.batch_size
        slots = None
        try:
            with table.lock:
                self._wait_for_batch(stop, timeout)
                slots, keys = store.take(self._number, count)
                taken = table.count(SAMPLES)
                events = table.changed()
            table.wake(events)
            self.columns.take(self._stored, slots, out)
            with table.lock:
                store.done(slots)
                slots = None
                events = table.changed()
        finally:
            if slots is not None:
                with table.lock:
                    store.give_back(self._number, slots)
        table.wake(events)
        return Batch(out, np.ones(count, np.float32), keys.astype(np.uint64), taken)

    def _choose(self, store: RingSlots, out: Block, stop: _Stop, timeout: float | None) -> Batch:
        table, columns = self._table, self.columns
        with table.lock:
            self._wait_for_batch(stop, timeout)
            slots, draw = store.choose(table.batch_size, self._sampler, self._unrolls)
            store.counts.samples += table.batch_size
            inserts = store.counts.inserts
            events = table.sampled(store)
        table.wake(events)
        columns.take(self._stored, slots, out)
        for attempt in range(_TRIES):
            fence()  # an overwritten slot has another key before its data changes
            if not np.count_nonzero(store.overwritten(slots, draw.keys)):
                break
            with table.lock:
                stale = np.flatnonzero(store.overwritten(slots, draw.keys))
                self._wait(  # a writer's death may have emptied a small table
                    clients.SAMPLES,
                    lambda: store.size > 0,
                    "a batch waits for unrolls",
                    stop,
                    timeout,
                )
                slots[stale], again = store.choose(len(stale), self._sampler, self._unrolls)
                draw.keys[stale] = again.keys
                draw.probability[stale] = again.probability
                if attempt == _TRIES - 1:  # with the lock held: nothing is overwritten meanwhile
                    columns.put(out, stale, columns.take(self._stored, slots[stale]))
                    break
            columns.put(out, stale, columns.take(self._stored, slots[stale]))
        return Batch(out, draw.probability, draw.keys.view(np.uint64), inserts)

    def _unrolls(self, slots: npt.NDArray[Any]) -> Trajectory:
        ones = np.ones(len(slots), np.float32)
        return self.columns.trajectory(self.columns.take(self._stored, slots), ones)

    def _register(self, what: int) -> None:
        """Records, with the lock held, what this client asks for. Raises Stopped if closed."""
        table = self._table
        table.check_open()
        if what not in self._roles:
            self._roles.add(what)
            table.take_role(self._number, what)

    def _wait_for_room(self, count: int, exempt: bool, stop: _Stop, timeout: float | None) -> None:
        store, size = self._table.store, self._table.batch_size
        done = lambda: (exempt and store.room(1) > 0) or store.has_room(count, size)  # noqa: E731
        wanted = 1 if exempt else count
        self._wait(clients.ROOM, done, "an insert waits for room", stop, timeout, wanted)

    def _wait(
        self,
        what: int,
        done: Callable[[], bool],
        wait: str,
        stop: _Stop,
        timeout: float | None,
        wanted: int = 1,
    ) -> None:
        """Waits until `done`, with the lock held. Args: wait: for messages; wanted: see `want`."""
        table = self._table
        self._register(what)
        if done():
            return
        table.clients.note_wait(self._number, what, True)
        try:
            wait_until(
                TableWait(table, what, lambda: may_end(timeout), wanted),
                done,
                stop=stop,
                timeout=timeout,
                what=lambda: f"{wait}: {table.describe()}",
            )
        finally:
            table.clients.note_wait(self._number, what, False)

    def wait_for_counts(
        self, done: Callable[[int, int], bool], what: str, stop: _Stop, timeout: float | None
    ) -> None:
        """As `SharedReplayBuffer.wait_for_counts`."""
        count = self._table.count
        with self._table.lock:
            # Waits for room wake for every change.
            is_done = lambda: done(count(INSERTS), count(SAMPLES))  # noqa: E731
            self._wait(clients.ROOM, is_done, what, stop, timeout)

    def update_priorities(
        self, keys: npt.NDArray[np.uint64], priorities: npt.NDArray[Any], largest: float = 0.0
    ) -> None:
        """As `Table.update_priorities`. Args: largest: another table's, for new unrolls."""
        store = self._table.store
        if isinstance(store, RingSlots):
            with self._table.lock:
                store.ring.largest = max(store.ring.largest, largest)
                store.ring.update_priorities(keys, priorities)

    def discard(self, keys: npt.NDArray[np.uint64], oldest: int) -> None:
        """As `Table.discard`."""
        table, store = self._table, self._table.store
        if not isinstance(store, RingSlots):
            return
        with table.lock:
            count = store.outdated(oldest, lambda slots: self.columns.versions(self._stored, slots))
            if count:
                store.remove(count)
                table.refill()
            store.ring.update_priorities(keys, np.zeros(len(keys)))
            events = table.changed()
        table.wake(events)

    def can_sample(self) -> bool:
        """Returns whether `sample` would return without waiting."""
        table = self._table
        if table.lock.behind:
            with table.lock:
                return table.can_sample()
        return table.can_sample()

    @property
    def is_prioritized(self) -> bool:
        """Whether the table currently samples by priority."""
        return self._table.config.table == "prioritized"

    def reconfigure(self, **changes: object) -> TableInfo:
        """As `SharedTable.reconfigure`."""
        return self._table.reconfigure(**changes)

    def info(self) -> TableInfo:
        """Returns the table's counts and limits."""
        return self._table.info()

    def save(self, config: ReplayConfig, folder: Path, timeout: float) -> dict[str, Any]:
        """As `Table.save`."""
        return files.save(SharedSnapshot(self._table, self.columns, self._stored), config, folder)

    def leave(self) -> None:
        """Releases the client's slots and its number."""
        table = self._table
        with table.lock:
            if table.store.holds(self._number):
                table.store.repair([self._number])
            table.clients.leave(self._number)
