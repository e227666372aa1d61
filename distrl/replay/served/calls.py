"""What the clients of a table's server can call, and what the server keeps of each client."""

import math
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from distrl.errors import ConfigError, DeadlineExceeded, SpecError
from distrl.frame_sockets import frames
from distrl.replay.buffer import checked_priorities
from distrl.replay.columns import Block
from distrl.replay.config import ReplayConfig
from distrl.replay.shared.call_numbers import Call
from distrl.replay.shared.handle import TableHandle
from distrl.replay.shared.slots import RingSlots
from distrl.replay.shared.table import SharedTable
from distrl.replay.shared.waits import check_admits
from distrl.types import Trajectory

CHUNK_BYTES = 16 << 20  # bytes of unrolls in a frame, unless one unroll is larger
KEPT = 2  # number of a client's last calls whose answers are kept, and that may be on their way
SLICE = 0.25  # seconds that a call waits at the server, before the client asks again
_PLAIN = (bool, int, float, str, type(None))  # types of settings


class Answer(NamedTuple):
    """What a call returned."""

    message: tuple[Any, ...]  # ("ok", result), ("wait", done, text) or ("error", type, text)
    data: tuple[frames.Bytes, ...] = ()  # pieces


class Served(NamedTuple):
    """A table that is served.

    Attributes:
      table: the table.
      struct: one stream at one step.
      config: the table's settings.
      handle: the server's handle, for calls that do not wait and hold no slots.
      stop: set when the server closes.
      folder: the folder below which the table may be saved; None: nowhere.
    """

    table: SharedTable
    struct: Trajectory
    config: ReplayConfig
    handle: TableHandle
    stop: threading.Event
    folder: Path | None


class ServedClient:
    """A client's last calls and the answers, and its handle once it inserts or samples.

    Attributes:
      lock: held during a call.
      number: the last call's number.
      answers: the answers to the last calls, by number; of answers with data only the last one.
      done: the last call that inserted by way of a server before this one, and its unrolls that are
        in the table; see `NumberedInserts.last`.
      inserted: the last block, for `Columns.unpack`.
      without_room: whether its last insert was not finished: no later insert is made before it.
      connections: number of its connections.
      left: when it closed its last connection.
    """

    def __init__(self, identity: bytes, name: str) -> None:
        self.identity, self._name = identity, name
        self.lock = threading.Lock()
        self.number = -1
        self.answers: dict[int, Answer] = {}
        self.done: tuple[int, int] | None = None  # not looked up yet
        self.inserted: Block | None = None
        self.without_room = False
        self.sampled = frames.Room()
        self.connections, self.left = 0, time.monotonic()
        self._handle: TableHandle | None = None

    def keep(self, number: int, answer: Answer) -> None:
        """Keeps the answer to a call; with `lock` held."""
        for old in [n for n, kept in self.answers.items() if kept.data or n <= number - KEPT]:
            del self.answers[old]
        self.number, self.answers[number] = number, answer

    def handle(self, served: Served) -> TableHandle:
        """Returns the client's own handle; with `lock` held."""
        if self._handle is None:
            sampler = served.config.sampler
            self._handle = TableHandle(served.table, served.struct, sampler, self._name)
        return self._handle

    def leave(self) -> None:
        """Gives its handle back; with `lock` held."""
        if self._handle is not None:
            self._handle.leave()
            self._handle = None


class Calls:
    """The calls that a client can make; their first argument is the frame's bytes."""

    def __init__(self, served: Served, client: ServedClient, number: int) -> None:
        self._served, self._client = served, client
        self._handle = served.handle
        self._call = Call(client.identity, number)

    def insert(
        self, data: frames.Bytes, size: int, priorities: Any, wait: float, again: bool
    ) -> Answer:
        block = self._block(data, size, priorities)
        if self._client.without_room and not again:
            return Answer(("wait", 0, self._described()))
        try:
            if block.size:
                handle = self._client.handle(self._served)
                handle.insert(block, self._served.stop, _slice(wait), self._call)
        except DeadlineExceeded:
            answer = Answer(("wait", self._inserted(), self._described()))
            self._client.without_room = True
            return answer
        self._client.without_room = False
        return Answer(("ok", None))

    def prefill(self, data: frames.Bytes, size: int, priorities: Any) -> Answer:
        block = self._block(data, size, priorities)
        if block.size:
            self._client.handle(self._served).prefill(block, self._call)
        return Answer(("ok", None))

    def _block(self, data: frames.Bytes, size: Any, priorities: Any) -> Block:
        """Returns those unrolls of an insert that no server has inserted yet."""
        if type(size) is not int or not 0 < size <= data.nbytes:
            raise SpecError(f"an insert of {size} unrolls in {data.nbytes} bytes")
        if priorities is not None:
            _, priorities = checked_priorities(np.arange(size, dtype=np.uint64), priorities)
        columns, client = self._handle.columns, self._client
        block = client.inserted = columns.unpack(data, size, client.inserted)
        if priorities is not None:
            block = block._replace(priorities=priorities)
        # Another server may have made the first calls that this one is sent.
        number, done = self._done_before()
        if self._call.number != number:
            done = size if self._call.number < number else 0
        return block.split(done, columns.has_time)[1] if done else block

    def _done_before(self) -> tuple[int, int]:
        client, table = self._client, self._served.table
        if client.done is None:
            with table.lock:
                client.done = table.numbered.last(client.identity)
        return client.done

    def _inserted(self) -> int:
        with self._served.table.lock:
            return self._served.table.numbered.done(self._call)

    def _described(self) -> str:
        """Describes the table to a client that waits. Raises Blocked if it would do so forever."""
        table = self._served.table
        with table.lock:  # a wait here is too short for the check that `TableWait` makes
            check_admits(table)
            return table.describe()

    def sample(self, data: frames.Bytes, wait: float) -> Answer:
        table, handle = self._served.table, self._client.handle(self._served)
        try:
            nbytes = handle.columns.nbytes(table.batch_size)
            # The previous batch, which is in this memory, has arrived, since there is another call.
            buffer = self._client.sampled.take(nbytes)
            batch = handle.sample_block(self._served.stop, _slice(wait), buffer)
        except DeadlineExceeded:
            return Answer(("wait", 0, self._described()))
        store = table.store
        with table.lock:
            size, mass = store.size, store.ring.mass if isinstance(store, RingSlots) else 0.0
        facts = (batch.keys, batch.probability, batch.inserts, size, mass, handle.is_prioritized)
        return Answer(("ok", facts), (handle.columns.pack(batch.block),))

    def update_priorities(
        self, data: frames.Bytes, keys: Any, priorities: Any, largest: float
    ) -> Answer:
        keys, priorities = checked_priorities(keys, priorities)
        if not (math.isfinite(largest) and largest >= 0):
            raise SpecError(f"a largest priority of {largest}")
        self._handle.update_priorities(keys, priorities, largest)
        return Answer(("ok", None))

    def discard(self, data: frames.Bytes, keys: Any, oldest: int) -> Answer:
        keys = np.asarray(keys, np.uint64)
        if keys.ndim != 1 or type(oldest) is not int or not -(2**63) <= oldest < 2**63:
            raise SpecError(f"a discard of keys {list(keys.shape)} and versions below {oldest}")
        self._handle.discard(keys, oldest)
        return Answer(("ok", None))

    def info(self, data: frames.Bytes) -> Answer:
        return Answer(("ok", self._handle.info()))

    def can_sample(self, data: frames.Bytes) -> Answer:
        return Answer(("ok", self._handle.can_sample()))

    def is_prioritized(self, data: frames.Bytes) -> Answer:
        return Answer(("ok", self._handle.is_prioritized))

    def reconfigure(self, data: frames.Bytes, changes: dict[str, Any]) -> Answer:
        if not all(type(value) in _PLAIN for value in changes.values()):
            raise ConfigError("a setting of a table is a number, text, a truth value or None")
        return Answer(("ok", self._handle.reconfigure(**changes)))

    def read(self, data: frames.Bytes, start: int, stop: int) -> Answer:
        columns = self._handle.columns
        if not (type(start) is type(stop) is int) or not (
            0 <= start < stop <= start + chunk(columns.nbytes(1))
        ):
            raise SpecError(f"unrolls {start} to {stop}: more than fit into an answer, or none")
        block = self._handle.read(slice(start, stop))
        return Answer(("ok", block.size), (columns.pack(block),))

    def save(self, data: frames.Bytes, folder: str) -> Answer:
        path, below = Path(folder).resolve(), self._served.folder
        if below is None or not path.is_relative_to(below.resolve()):
            raise ConfigError(f"{path}: the table's server saves it below {below} only")
        return Answer(("ok", self._handle.save(self._served.config, path, 0.0)))

    def layout(self, data: frames.Bytes) -> Answer:
        table = self._served.table
        sizes = (table.config.table == "queue", table.config.unroll_length, table.batch_size)
        return Answer(("ok", (table.name, *sizes)))


NAMES = frozenset(name for name in vars(Calls) if not name.startswith("_"))
"""The calls' names."""


def _slice(wait: float) -> float:
    """Returns the seconds for which a call waits at the server."""
    return min(max(0.0, float(wait)), SLICE)


def chunk(unroll_bytes: int) -> int:
    """Returns how many unrolls are sent in a frame at most."""
    return max(1, CHUNK_BYTES // unroll_bytes)
