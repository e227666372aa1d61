"""Fetches a served table's next batch while the learner learns from the previous one."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from distrl.replay.buffer import ReplayAdministration, ReplayReader
from distrl.replay.remote.fetched import FetchedBatches
from distrl.replay.remote.fetcher import Fetcher
from distrl.replay.served.client import ServedReplayBuffer
from distrl.replay.served.table import FetchStop
from distrl.replay.table.info import TableInfo
from distrl.types import Sample


class PrefetchingReplayBuffer(ReplayReader, ReplayAdministration):
    """The learner's client of a served table. It prefetches a batch, which counts as sampled."""

    def __init__(
        self,
        client: ServedReplayBuffer,
        batch_size: int,
        stop: threading.Event | None = None,
    ) -> None:
        """Args:
        client: a client of the table; closed with this one.
        batch_size: unrolls per sample.
        stop: set when the program stops; ends waits.
        """
        self._client = client

        def start() -> Fetcher[Sample]:
            return Fetcher(
                lambda: FetchStop(stop),
                lambda fetch_stop: client.table.take(fetch_stop, None).sample,
                "of a server",
            )

        self._batches = FetchedBatches(
            start, client.info, lambda: str(client.info()), batch_size, stop
        )

    @property
    def is_prioritized(self) -> bool:
        return self._client.is_prioritized

    def sample(self, timeout: float | None) -> Sample:
        return self._batches.take(timeout)

    def update_priorities(self, keys: npt.NDArray[np.uint64], priorities: npt.NDArray[Any]) -> None:
        self._client.update_priorities(keys, priorities)

    def discard(self, keys: npt.NDArray[np.uint64], oldest: int) -> None:
        self._client.discard(keys, oldest)

    def can_sample(self) -> bool:
        return self._batches.ready()

    def has_more(self) -> bool:
        return self._batches.has_more()

    def info(self) -> TableInfo:
        return self._client.info()

    def save(self, folder: Path, timeout: float) -> dict[str, Any]:
        return self._client.save(folder, timeout)

    def close(self) -> None:
        self._batches.close()
        self._client.close()
