"""Batches of a served table, fetched while the learner learns from the one before."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from distrl.errors import DeadlineExceeded, PeerError, Stopped
from distrl.replay.buffer import ReplayAdministration, ReplayReader
from distrl.replay.remote.fetcher import Fetcher
from distrl.replay.remote.supply import Supply, has_more, supply_of
from distrl.replay.served.client import ServedReplayBuffer
from distrl.replay.served.table import Sampler
from distrl.replay.table.info import TableInfo
from distrl.types import Sample


class AheadReplayBuffer(ReplayReader, ReplayAdministration):
    """The learner's client of a served table. Batches fetched ahead count as sampled."""

    def __init__(
        self,
        client: ServedReplayBuffer,
        batch_size: int,
        stop: threading.Event | None = None,
        prefetch: int = 1,
    ) -> None:
        """Args:
        client: a client of the table; closed with this one.
        batch_size: unrolls per sample.
        stop: set when the program stops; ends waits.
        prefetch: batches fetched in advance.
        """
        self._client, self._batch_size = client, batch_size
        self._stop, self._prefetch = stop, prefetch
        self._fetcher: Fetcher[Sample] | None = None
        self._supply: Supply | None = None

    @property
    def is_prioritized(self) -> bool:
        return self._client.is_prioritized

    def sample(self, timeout: float | None) -> Sample:
        try:
            sample = self._started().take(timeout, self._stop, lambda: None)
        except DeadlineExceeded as error:
            raise DeadlineExceeded(f"{error}: {self._client.info()}") from None
        except RuntimeError as error:
            if isinstance(error.__cause__, Stopped | DeadlineExceeded | PeerError):
                raise error.__cause__ from None
            raise
        if self._supply is not None:
            self._supply.take(self._batch_size)
        return sample

    def _started(self) -> Fetcher[Sample]:
        if self._fetcher is None:
            self._supply = supply_of(self.info)
            self._fetcher = Fetcher(
                lambda: Sampler(self._stop),
                lambda sampler: self._client.table.take(sampler, None).sample,
                self._prefetch,
                "of a server",
            )
        return self._fetcher

    def update_priorities(self, keys: npt.NDArray[np.uint64], priorities: npt.NDArray[Any]) -> None:
        self._client.update_priorities(keys, priorities)

    def discard(self, keys: npt.NDArray[np.uint64], oldest: int) -> None:
        self._client.discard(keys, oldest)

    def can_sample(self) -> bool:
        return self._started().ready()

    def has_more(self) -> bool:
        return has_more(self._supply, self.info, self._batch_size)

    def info(self) -> TableInfo:
        return self._client.info()

    def save(self, folder: Path, timeout: float) -> dict[str, Any]:
        return self._client.save(folder, timeout)

    def close(self) -> None:
        if self._fetcher is not None:
            self._fetcher.close()
        self._client.close()
