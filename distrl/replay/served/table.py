"""A table that a node serves, as its clients have it."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from distrl.replay.columns import Block, Columns
from distrl.replay.config import RateLimits, ReplayConfig
from distrl.replay.served.calls import chunk
from distrl.replay.served.connection import Connection
from distrl.replay.table.info import TableInfo, Wait
from distrl.replay.table.waiting import StopEvent, wait_until
from distrl.types import Sample

_KEYS = 16_384  # in a frame


class Taken(NamedTuple):
    """A batch, and what its table was like.

    Attributes:
      sample: the batch.
      block: its unrolls.
      size: unrolls in the table.
      mass: sum of their weights; see `Ring.mass`.
    """

    sample: Sample
    block: Block
    size: int
    mass: float


class Sampler:
    """What ends a thread's waits for batches; for `take`, an event."""

    def __init__(self, stop: threading.Event | None) -> None:
        """Args: stop: set when the program stops, which ends them too."""
        self._stop, self._closed = stop, False

    def is_set(self) -> bool:
        """Returns whether the waits are to end."""
        return self._closed or (self._stop is not None and self._stop.is_set())

    def Close(self) -> None:  # noqa: N802, as Reverb's samplers
        """Ends the waits."""
        self._closed = True


class ServedTable:
    """A `Table` that is elsewhere. Thread safe: inserts, samples, saves and the rest do not wait
    for each other.
    """

    def __init__(
        self, connect: Callable[..., Connection], columns: Columns, batch_size: int
    ) -> None:
        """Args:
        connect: makes a connection, of the bytes that may follow an answer; `saves` is one that
          the end of the program does not cut.
        columns: the columns of an unroll.
        batch_size: unrolls per sample.
        """
        self.columns = columns
        self._chunk = chunk(columns.nbytes(1))
        limit = columns.nbytes(max(self._chunk, batch_size))
        self._inserts, self._samples, self._others = (connect(limit) for _ in range(3))
        self._saves = connect(limit, saves=True)
        self._batch_size = batch_size

    def insert(self, block: Block, stop: threading.Event | None, timeout: float) -> None:
        """As `Table.insert`."""
        for part in self._parts(block):
            self._insert_part(part, stop, timeout)

    def _insert_part(self, block: Block, stop: threading.Event | None, timeout: float) -> None:
        left: list[Block] = [block]
        table = [""]

        def insert(seconds: float) -> None:
            part = left[0]
            data = self.columns.pack(part)
            (state, *rest), _ = self._inserts.call(
                "insert", part.size, part.priorities, seconds, data=data
            )
            if state == "ok":
                left.clear()
            else:
                table[0] = rest[1]
                if rest[0]:
                    left[0] = part.split(rest[0], self.columns.has_time)[1]

        insert(0.0)
        wait_until(
            _Asking(insert),
            lambda: not left,
            stop=stop,
            timeout=timeout,
            what=lambda: f"an insert waits for room: {table[0]}",
        )

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
            keys, probability, inserts, size, mass = rest[0]
            block = self.columns.unpack(data, self._batch_size)
            sample = Sample(self.columns.trajectory(block, probability), keys, inserts)
            taken.append(Taken(sample, block, size, mass))

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
            data = self.columns.pack(part)
            self._inserts.call("prefill", part.size, part.priorities, data=data)

    def update_priorities(
        self, keys: npt.NDArray[np.uint64], priorities: npt.NDArray[Any], largest: float = 0.0
    ) -> None:
        """As `Table.update_priorities`. Args: largest: of other tables; new unrolls get it."""
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
        return _info(self._others.call("info")[0][1])

    def reconfigure(self, **changes: object) -> TableInfo:
        """As `Table.reconfigure`."""
        return _info(self._others.call("reconfigure", changes)[0][1])

    def read(self, indices: slice) -> Block:
        """As `Table.read`."""
        start, stop, step = indices.indices(self.info().size)
        if step != 1:
            raise ValueError("unrolls of a served table are read one after another")
        blocks = []
        for i in range(start, stop, self._chunk):
            (_, size), data = self._others.call("read", i, min(i + self._chunk, stop))
            blocks.append(self.columns.unpack(data, size))
        return self.columns.join(blocks) if blocks else self.columns.allocate(0)

    def save(self, config: ReplayConfig, folder: Path, timeout: float) -> dict[str, Any]:
        """As `Table.save`, by the server, which has the settings and must see `folder`."""
        where = str(folder.absolute())
        counts: dict[str, Any] = self._saves.call("save", where, timeout=timeout)[0][1]
        return counts

    def layout(self, timeout: float) -> tuple[str, bool, int, int]:
        """Returns its name, whether it is a queue, its unrolls' length and its batches' size.

        Args:
          timeout: seconds that the server may take to begin.
        """
        name, is_queue, length, batch = self._others.call("layout", timeout=timeout)[0][1]
        return str(name), bool(is_queue), int(length), int(batch)

    def close(self) -> None:
        """Ends all calls and the connections."""
        for connection in (self._inserts, self._samples, self._others, self._saves):
            connection.close()


class _Asking:
    """What `wait_until` waits with: a call that waits at the server."""

    def __init__(self, ask: Callable[[float], None]) -> None:
        self._ask = ask

    def wait(self, timeout: float) -> None:
        self._ask(timeout)


def _info(told: Any) -> TableInfo:
    info = TableInfo(*told)
    limits = info.limits and RateLimits(*info.limits)
    return info._replace(limits=limits, waits=tuple(Wait(*wait) for wait in info.waits))
