"""The common part of all tables' clients: they cut steps into unrolls before inserting."""

import abc
import math
import threading
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from distrl.errors import Stopped
from distrl.replay.buffer import ReplayBuffer, checked_priorities
from distrl.replay.columns import Block, Columns
from distrl.replay.config import ReplayConfig
from distrl.replay.episode_unrolls import EpisodeUnroller
from distrl.replay.insert_priorities import with_priorities
from distrl.replay.table.experience import Experience
from distrl.replay.table.info import TableInfo
from distrl.replay.table.table import Table
from distrl.replay.unrolls import Unroller
from distrl.runtime.time_account import REPLAY_WRITE, in_state
from distrl.types import Inference, Sample, TimeStep, Trajectory


class UnrollingReplayBuffer(ReplayBuffer):
    """Cuts the steps of its own streams into unrolls; subclasses insert them into a table."""

    def __init__(self, struct: Trajectory, config: ReplayConfig):
        """Args:
        struct: one stream at one step, from `distrl.specs.trajectory_struct`.
        config: the table's settings.
        """
        self._config = config
        self._unroller: Unroller
        if config.whole_episodes:
            self._unroller = EpisodeUnroller(struct, config.unroll_length)
        else:
            self._unroller = Unroller(struct, config.unroll_length, config.period)

    @property
    def columns(self) -> Columns:
        """The columns of an unroll."""
        return self._unroller.columns

    def needs_state(self, stream_ids: npt.NDArray[np.int32], life: int | None = None) -> bool:
        return self._unroller.needs_state(stream_ids, life)

    def add(
        self,
        stream_ids: npt.NDArray[np.int32],
        timestep: TimeStep,
        inference: Inference,
        life: int = 0,
    ) -> None:
        block = self._unroller.cut(stream_ids, timestep, inference, life)
        if block is not None:
            self.insert(block)

    def cut(
        self,
        stream_ids: npt.NDArray[np.int32],
        timestep: TimeStep,
        inference: Inference,
        life: int = 0,
    ) -> Block | None:
        """As `add`, but returns the finished unrolls instead of inserting them."""
        return self._unroller.cut(stream_ids, timestep, inference, life)

    def insert(self, block: Block) -> None:
        """Inserts finished unrolls. Raises as `ReplayWriter.add`."""
        with in_state(REPLAY_WRITE):
            self._insert(with_priorities(block, self.columns, self._config.priority_of))

    def begin_again(self) -> None:
        """Expects the step that finished the last unrolls once more; see `Unroller`."""
        self._unroller.begin_again()

    @abc.abstractmethod
    def _insert(self, block: Block) -> None:
        """Inserts finished unrolls. Raises as `ReplayWriter.add`."""


class TableReplayBuffer(UnrollingReplayBuffer):
    """A client of a `Table`, in this process or in shared memory."""

    def __init__(
        self,
        table: Table,
        struct: Trajectory,
        config: ReplayConfig,
        stop: threading.Event | None,
        insert_timeout: float,
    ):
        """Args:
        table: the table to use.
        struct: one stream at one step.
        config: the table's settings.
        stop: set when the program stops; ends waits.
        insert_timeout: seconds that an insert waits for room before it fails.
        """
        super().__init__(struct, config)
        self._table = table
        self._stop = stop
        self._insert_timeout = insert_timeout
        self._closed = False
        self.packs = self.columns if self.columns.packs else None

    @property
    def is_prioritized(self) -> bool:
        return self._table.is_prioritized

    def _insert(self, block: Block) -> None:
        self._check_open()
        self._table.insert(block, self._stop, self._insert_timeout)

    def flush(self) -> None:
        self._check_open()  # `add` returns when its unrolls are in the table

    def sample(self, timeout: float | None) -> Sample:
        self._check_open()
        return self._table.sample(self._stop, timeout)

    def update_priorities(self, keys: npt.NDArray[np.uint64], priorities: npt.NDArray[Any]) -> None:
        keys, priorities = checked_priorities(keys, priorities)
        if self._config.priority_of is None:
            self._table.update_priorities(keys, priorities)

    def discard(self, keys: npt.NDArray[np.uint64], oldest: int) -> None:
        self._table.discard(keys, oldest)

    def can_sample(self) -> bool:
        return self._table.can_sample()

    def has_more(self) -> bool:
        limits = self._table.info().limits
        return self._table.can_sample() and (limits is None or math.isfinite(limits.min_diff))

    @property
    def experience(self) -> Experience:
        """The table's unrolls as a list: to inspect, and to fill it before training."""
        return Experience(self._table, self._config.priority_of)

    def reconfigure(self, **changes: object) -> TableInfo:
        """Changes settings of the live table, for all its clients.

        Blocked calls wake and re-check the new limits.

        Args:
          **changes: settings of `ReplayConfig` in `distrl.replay.table.reconfigure.CHANGEABLE`.

        Returns:
          The table's counts and new limits.

        Raises:
          ConfigError: the settings could stall, or cannot be changed; nothing was.
        """
        return self._table.reconfigure(**changes)

    def info(self) -> TableInfo:
        return self._table.info()

    def save(self, folder: Path, timeout: float) -> dict[str, Any]:
        return self._table.save(self._config, folder, timeout)

    def close(self) -> None:
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise Stopped(f"this client of table {self._table.info().name!r} is closed")
