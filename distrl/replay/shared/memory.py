"""The mapped file of a table in shared memory: its parts, and its creation."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from distrl.replay.columns import Block, Columns
from distrl.replay.config import ReplayConfig
from distrl.replay.shared import clients
from distrl.replay.shared.call_numbers import NumberedInserts
from distrl.replay.shared.clients import Clients
from distrl.replay.shared.header import Header
from distrl.replay.shared.layout import SLOT_ARRAYS, TableLayout
from distrl.replay.shared.margins import ErrorMargins
from distrl.replay.shared.settings import SharedSettings
from distrl.replay.shared.slots import QueueSlots, RingSlots
from distrl.replay.table.files import Stored
from distrl.replay.table.rate_limiter import RateLimiter
from distrl.replay.table.ring import Ring
from distrl.shared_memory import segment
from distrl.shared_memory.futex import Event
from distrl.shared_memory.lock import SharedLock
from distrl.shared_memory.process import Process
from distrl.shared_memory.segment import SharedFile
from distrl.types import Trajectory

# Indices into `ints`; slots.py has the first ones. The last three begin arrays of `Clients`.
READERS, CLOSED, _WAITING, _LOST, _WANTED = 8, 9, 10, 16, 22


class TableMemory:
    """The parts of a table's file.

    Attributes:
      header: what the creator wrote.
      data: uint8, the unrolls of all slots as one block.
      slots: number of slots.
      ints: int64 numbers, see above.
      margins: the rate limiter's margins.
      settings: the current settings.
      clients: the table's clients.
      numbered: what the calls of a server's clients have inserted.
      store: the table's slots.
      lock_address: address of the lock.
      events: the events for which clients wait.
    """

    def __init__(self, memory: npt.NDArray[Any], path: Path):
        """Args:
        memory: the file's bytes, uint8, with the header.
        path: the file's path, for messages.
        """
        self.header = header = Header.read(memory, path)
        config = header.config
        layout = TableLayout(config, header.batch_size, lambda slots: header.data_bytes)
        views = layout.views(memory)
        self.data, self.slots = views["data"], layout.slots
        self.ints = ints = views["ints"].data.cast("q")
        self.margins = ErrorMargins(views["margins"].view(np.float64))
        self.settings = SharedSettings(views["settings"])
        rows = views["clients"].view(np.int64).reshape(-1, clients.COLUMNS)
        names = views["names"].reshape(-1, clients.NAME_BYTES)
        self.clients = Clients(
            rows, names, ints[_WAITING:_LOST], ints[_LOST:_WANTED], ints[_WANTED:]
        )
        self.numbered = NumberedInserts(views["numbered"].data.cast("q"))
        arrays = {key: views[key].view(np.int64) for key in SLOT_ARRAYS}
        self.store: QueueSlots | RingSlots
        if config.table == "queue":
            self.store = QueueSlots(ints, arrays, config.max_size)
        else:
            limiter = RateLimiter(config.limits(header.batch_size), ints)
            storage = [views[key].view(np.float64) for key in ("sums", "priorities", "largest")]
            ring = Ring(config, limiter, np.random.default_rng(header.seed), *storage)
            self.store = RingSlots(ints, arrays, config.max_size, limiter, ring)
        address = memory.ctypes.data
        self.lock_address = address + layout.offsets["lock"]
        self.events = {
            clients.ROOM: Event(address + layout.offsets["room"]),
            clients.SAMPLES: Event(address + layout.offsets["samples"]),
        }

    def restore(self, stored: Stored, columns: Columns, block: Block) -> None:
        """Loads a saved table before any other process can use this one.

        Args:
          stored: the saved table.
          columns: the columns of its unrolls.
          block: the new table's data.
        """
        for start, stop in stored.slices():
            columns.put(block, slice(start, stop), stored.read(start, stop))
        if isinstance(self.store, RingSlots) and stored.priorities is not None:
            self.store.ring.set_priorities(stored.keys(), stored.priorities)
            self.store.ring.largest = stored.largest
        self.store.restore(stored.first, stored.size, stored.samples)
        if isinstance(self.store, RingSlots):
            counts, config = self.store.counts, self.header.config
            counts.resume(config.limits(self.header.batch_size), stored.moved)
            lock = SharedLock(self.lock_address, lambda: None, "a table that is being made")
            with lock:  # for all processes, this one's included
                lock.change(lambda number: self.settings.write(number, config, counts.limits))


def create_file(
    struct: Trajectory,
    config: ReplayConfig,
    batch_size: int,
    name: str,
    seed: int | None,
    owner: Process | None,
    saved: Path | None,
    schedule: str,
) -> tuple[SharedFile, npt.NDArray[Any]]:
    """Creates the file of a table, which others can find from then on, and returns its bytes.

    Arguments and errors are those of `SharedTable.create`.
    """
    columns = Columns(struct, config.unroll_length)
    layout = TableLayout(config, batch_size, columns.nbytes)
    header = Header(
        dataclasses.replace(config, sampler=None, priority_of=None),
        None if config.sampler is None else config.sampling,
        batch_size,
        layout.sizes["data"],
        [seed] if seed is not None else np.random.SeedSequence().generate_state(4).tolist(),
        schedule,
    )
    file = segment.create(name, layout.nbytes, owner or Process.this())
    try:
        memory = file.map()
        header.write(memory)
        table = TableMemory(memory, file.path)
        SharedLock.initialise(table.lock_address)
        block = columns.allocate(layout.slots, table.data)
        table.margins.reset()
        table.store.repair([])
        if saved is not None:
            table.restore(Stored(saved, columns, config), columns, block)
        return segment.publish(file), memory
    except BaseException:
        file.path.unlink(missing_ok=True)
        raise
