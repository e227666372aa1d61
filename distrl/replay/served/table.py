"""The client's side of a table that a node serves."""

import collections
import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from distrl.errors import SpecError
from distrl.replay.columns import Block, Columns
from distrl.replay.config import RateLimits, ReplayConfig
from distrl.replay.served.calls import KEPT, SLICE, chunk
from distrl.replay.served.connection import Connection
from distrl.replay.table.info import TableInfo, Wait
from distrl.replay.table.waiting import StopEvent, wait_until
from distrl.types import Sample

_KEYS = 16_384  # keys in a frame


class Taken(NamedTuple):
    """A batch, and facts about its table at that time.

    Attributes:
      sample: the batch.
      block: its unrolls.
      size: unrolls in the table.
      mass: sum of their weights; see `Ring.mass`.
      is_prioritized: whether it samples by priority.
    """

    sample: Sample
    block: Block
    size: int
    mass: float
    is_prioritized: bool


class FetchStop:
    """Ends a thread's waits for batches; serves `take` as an event."""

    def __init__(self, stop: threading.Event | None) -> None:
        """Args: stop: set when the program stops, which ends the waits, too."""
        self._stop, self._closed = stop, False

    def is_set(self) -> bool:
        """Returns whether the waits are to end."""
        return self._closed or (self._stop is not None and self._stop.is_set())

    def Close(self) -> None:  # noqa: N802, as Reverb's samplers
        """Ends the waits."""
        self._closed = True


class ServedTable:
    """A `Table` that is elsewhere. Inserts, samples, saves and the rest do not wait for each other.

    Thread safe, except for the inserts, which must come from one thread.
    """

    def __init__(
        self, connect: Callable[..., Connection], columns: Columns, batch_size: int
    ) -> None:
        """Args:
        connect: makes a connection; takes the bytes that may follow an answer, and `saves`, whether
          the end of the program leaves it open.
        columns: the columns of an unroll.
        batch_size: unrolls per sample.
        """
        self.columns = columns
        self._chunk = chunk(columns.nbytes(1))
        limit = columns.nbytes(max(self._chunk, batch_size))
        self._inserts, self._samples, self._others = (connect(limit) for _ in range(3))
        self._saves = connect(limit, saves=True)
        self._batch_size = batch_size
        self._inserting: collections.deque[Block] = collections.deque()  # not in the table yet
        self._begun = 0  # number of these, from the first on, that are on their way
        self._without_room = False  # the first one was sent, and not, or only partly, inserted
        self._described = ""  # description of the table without room

    def insert(
        self,
        block: Block,
        stop: threading.Event | None,
        timeout: float,
        pipelined: bool = False,
    ) -> None:
        """As `Table.insert`.

        Args:
          block, stop, timeout: as there.
          pipelined: return while the unrolls, or the last frames of many, are on their way: one of
            the next inserts, or `flush`, waits until they are in the table, and raises their
            errors. They must not change until then.
        """
        for part in self._parts(block):
            self._finish_inserts(KEPT - 1, stop, timeout)
            self._inserting.append(part)
            self._begin_inserts(SLICE if pipelined else 0.0)
        if not pipelined:
            self.flush(stop, timeout)

    def flush(self, stop: threading.Event | None, timeout: float) -> None:
        """Waits until the unrolls that are on their way are in the table; raises as `insert`."""
        self._finish_inserts(0, stop, timeout)

    def _finish_inserts(self, left: int, stop: threading.Event | None, timeout: float) -> None:
        """Waits until all inserts but the last `left` are done, and none is without room."""
        wait_until(
            _Asking(self._begin_inserts),
            lambda: self._are_done(left),
            stop=stop,
            timeout=timeout,
            what=lambda: f"an insert waits for room: {self._described}",
        )

    def _begin_inserts(self, seconds: float) -> None:
        """Sends blocks that are not on their way. Args: seconds: the server's wait for room."""
        for block in itertools.islice(self._inserting, self._begun, None):
            again, self._without_room = self._without_room, False
            data = self.columns.pieces(block)
            args = block.size, block.priorities, seconds, again
            # A caller that continues meanwhile, and lets the server wait for room, is in no hurry.
            self._inserts.begin("insert", *args, data=data, early=not seconds)
            self._begun += 1

    def _are_done(self, left: int) -> bool:
        """Receives answers until all inserts but `left` are done, or there was no room for one."""
        without_room: list[Block] = []
        try:
            while self._begun and (without_room or len(self._inserting) > left):
                block = self._inserting.popleft()  # lost if the insert fails
                self._begun -= 1
                (state, *rest), _ = self._inserts.finish()
                if state != "ok":
                    done, self._described = rest
                    with _reading(self._inserts, "insert"):
                        _count(done, block.size - 1)
                    block = block.split(done, self.columns.has_time)[1] if done else block
                    without_room.append(block)
        finally:
            self._inserting.extendleft(reversed(without_room))
            self._without_room |= bool(without_room)
        return not self._without_room and len(self._inserting) <= left

    def sample(self, stop: threading.Event | None, timeout: float | None) -> Sample:
        """As `Table.sample`."""
        return self.take(stop, timeout).sample

    def take(self, stop: StopEvent | None, timeout: float | None) -> Taken:
        """As `sample`, with facts about the table."""
        taken: list[Taken] = []
        table = [""]

        def take(seconds: float) -> None:
            (state, *rest), data = self._samples.call("sample", seconds)
            if state == "wait":
                table[0] = rest[1]
                return
            with _reading(self._samples, "sample"):
                keys, probability, inserts, size, mass, by_priority = rest[0]
                _check(keys, np.uint64, self._batch_size)
                _check(probability, np.float32, self._batch_size)
                block = self.columns.unpack(data, self._batch_size)
                sample = Sample(self.columns.trajectory(block, probability), keys, _count(inserts))
                facts = _count(size), float(mass), bool(by_priority)
                taken.append(Taken(sample, block, *facts))

        take(0.0)
        wait_until(
            _Asking(take),
            lambda: bool(taken),
            stop=stop,
            timeout=timeout,
            what=lambda: f"a batch of {self._batch_size} waits for samples: {table[0]}",
        )
        return taken[0]

    def _parts(self, block: Block) -> list[Block]:
        parts = []
        while block.size > self._chunk:
            part, block = block.split(self._chunk, self.columns.has_time)
            parts.append(part)
        return [*parts, block] if block.size else parts

    def prefill(self, block: Block) -> None:
        """As `Experience.extend`; a queue must have room for each frame's unrolls."""
        for part in self._parts(block):
            data = self.columns.pieces(part)
            self._others.call("prefill", part.size, part.priorities, data=data)

    def update_priorities(
        self, keys: npt.NDArray[np.uint64], priorities: npt.NDArray[Any], largest: float = 0.0
    ) -> None:
        """As `Table.update_priorities`. Args: largest: that of other tables, for new unrolls."""
        for i in range(0, max(1, len(keys)), _KEYS):
            some = slice(i, i + _KEYS)
            self._others.call("update_priorities", keys[some], priorities[some], largest)

    def discard(self, keys: npt.NDArray[np.uint64], oldest: int) -> None:
        """As `Table.discard`."""
        for i in range(0, max(1, len(keys)), _KEYS):
            self._others.call("discard", keys[i : i + _KEYS], oldest)

    def can_sample(self) -> bool:
        """As `Table.can_sample`."""
        return bool(self._others.call("can_sample")[0][1])

    @property
    def is_prioritized(self) -> bool:
        """As `Table.is_prioritized`."""
        return bool(self._others.call("is_prioritized")[0][1])

    def info(self) -> TableInfo:
        """As `Table.info`."""
        return self._info("info")

    def reconfigure(self, **changes: object) -> TableInfo:
        """As `Table.reconfigure`."""
        return self._info("reconfigure", changes)

    def _info(self, name: str, *args: Any) -> TableInfo:
        (_, counted), _ = self._others.call(name, *args)
        with _reading(self._others, name):
            table, *counts, limits, waits = counted
            size, max_size, inserts, samples = map(_count, counts)
            return TableInfo(
                str(table),
                size,
                max_size,
                inserts,
                samples,
                limits and RateLimits(*map(_number, limits)),
                tuple(Wait(str(who), str(what), float(since)) for who, what, since in waits),
            )

    def read(self, indices: slice) -> Block:
        """As `Table.read`."""
        start, stop, step = indices.indices(self.info().size)
        if step != 1:
            raise ValueError("unrolls of a served table are read one after another")
        blocks = []
        for i in range(start, stop, self._chunk):
            (_, size), data = self._others.call("read", i, min(i + self._chunk, stop))
            with _reading(self._others, "read"):
                blocks.append(self.columns.unpack(data, _count(size, self._chunk)))
        return self.columns.join(blocks) if blocks else self.columns.allocate(0)

    def save(self, config: ReplayConfig, folder: Path, timeout: float) -> dict[str, Any]:
        """As `Table.save`, by the server, which has the settings and must see `folder`."""
        where = str(folder.absolute())
        (_, counts), _ = self._saves.call("save", where, timeout=timeout)
        with _reading(self._saves, "save"):
            return {name: _count(counts[name]) for name in ("size", "inserts", "samples")}

    def layout(self, timeout: float) -> tuple[str, bool, int, int]:
        """Returns the table's name, whether it is a queue, its unroll length and its batch size.

        Args:
          timeout: seconds that the server may take to begin.
        """
        (_, layout), _ = self._others.call("layout", timeout=timeout)
        with _reading(self._others, "layout"):
            name, is_queue, length, batch = layout
            return str(name), bool(is_queue), _count(length), _count(batch)

    def close(self) -> None:
        """Ends all calls and the connections."""
        for connection in (self._inserts, self._samples, self._others, self._saves):
            connection.close()


class _Asking:
    """The condition of `wait_until` for a call that waits at the server."""

    def __init__(self, ask: Callable[[float], None]) -> None:
        self._ask = ask

    def wait(self, timeout: float) -> None:
        self._ask(timeout)


@contextlib.contextmanager
def _reading(connection: Connection, name: str) -> Iterator[None]:
    """Raises PeerError if what the context reads is no answer to a call of this name."""
    try:
        yield
    except (TypeError, ValueError, KeyError, OverflowError, SpecError) as error:
        raise connection.no_answer(name, error) from None


def _count(value: Any, most: int = 2**63 - 1) -> int:
    if not isinstance(value, int | np.integer) or not 0 <= value <= most:
        raise ValueError(f"a {type(value).__name__} where a count up to {most} belongs")
    return int(value)


def _number(value: Any) -> Any:
    if not isinstance(value, int | float | np.number):
        raise ValueError(f"a {type(value).__name__} where a number belongs")
    return value


def _check(value: Any, dtype: npt.DTypeLike, size: int) -> None:
    if not isinstance(value, np.ndarray) or (value.dtype, value.shape) != (dtype, (size,)):
        raise ValueError(f"a {type(value).__name__} where {np.dtype(dtype)}[{size}] belongs")
