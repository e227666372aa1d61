"""A client of a table that takes finished blocks: what a replay does before its table."""

import threading
from pathlib import Path
from typing import Any

import numpy as np

from distrl.errors import Stopped
from distrl.replay.buffer import ReplayBuffer, ReplayConfig, checked_priorities
from distrl.replay.table import files
from distrl.replay.table.experience import Experience, Table
from distrl.replay.table.info import TableInfo
from distrl.replay.unrolls import Unroller
from distrl.types import Inference, Sample, TimeStep, Trajectory


class TableReplayBuffer(ReplayBuffer):
    """Cuts steps into unrolls and hands them to a `Table`."""

    def __init__(
        self,
        table: Table,
        struct: Trajectory,
        config: ReplayConfig,
        stop: threading.Event | None,
        insert_timeout: float,
    ):
        """Args:
        table: that takes what is finished.
        struct: of one stream at one step.
        config: the table's.
        stop: set when the program stops; ends waits.
        insert_timeout: seconds that an insert waits for room before it fails.
        """
        self._table = table
        self._config = config
        self._unroller = Unroller(struct, config.unroll_length, config.period)
        self._stop = stop
        self._insert_timeout = insert_timeout
        self._closed = False

    @property
    def is_prioritized(self) -> bool:
        return self._table.is_prioritized

    @property
    def experience(self) -> Experience:
        return Experience(self._table)

    def needs_state(self, stream_ids: np.ndarray, life: int | None = None) -> bool:
        return self._unroller.needs_state(stream_ids, life)

    def add(
        self, stream_ids: np.ndarray, timestep: TimeStep, inference: Inference, life: int = 0
    ) -> None:
        block = self._unroller.cut(stream_ids, timestep, inference, life)
        if block is not None:
            self._check_open()
            self._table.insert(block, self._stop, self._insert_timeout)

    def flush(self) -> None:
        self._check_open()

    def sample(self, timeout: float | None) -> Sample:
        self._check_open()
        return self._table.sample(self._stop, timeout)

    def update_priorities(self, keys: np.ndarray, priorities: np.ndarray) -> None:
        self._table.update_priorities(*checked_priorities(keys, priorities))

    def can_sample(self) -> bool:
        return self._table.can_sample()

    def reconfigure(self, **changes: object) -> TableInfo:
        return self._table.reconfigure(**changes)

    def info(self) -> TableInfo:
        return self._table.info()

    def save(self, folder: Path, timeout: float) -> dict[str, Any]:
        return files.save(self._table.freeze(), self._config, folder)

    def close(self) -> None:
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise Stopped(f"this client of table {self._table.info().name!r} is closed")
