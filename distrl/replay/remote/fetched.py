"""Batches that a thread fetches from servers, and whether there are more."""

import threading
from collections.abc import Callable
from typing import Generic

from distrl.errors import DeadlineExceeded, PeerError, ServerSilent, Stopped
from distrl.replay.remote.fetcher import Batch, Fetcher
from distrl.replay.remote.supply import Supply, has_more, supply_of
from distrl.replay.table.info import TableInfo


class FetchedBatches(Generic[Batch]):
    """What the clients of servers have in common: batches are fetched from the first one on."""

    def __init__(
        self,
        start: Callable[[], Fetcher[Batch]],
        info: Callable[[], TableInfo],
        describe: Callable[[], str],
        count: int,
        stop: threading.Event | None,
    ) -> None:
        """Args:
        start: begins to fetch.
        info: returns the counts of the servers' tables; may wait for them, within its deadline.
        describe: returns these counts for a message.
        count: unrolls of a batch.
        stop: set when the program stops; ends waits.
        """
        self._start, self._info, self._describe = start, info, describe
        self._count, self._stop = count, stop
        self._fetcher: Fetcher[Batch] | None = None
        self._supply: Supply | None = None

    def take(self, timeout: float | None, watch: Callable[[], None] = lambda: None) -> Batch:
        """Returns the next batch. Arguments: `Fetcher.take`.

        Raises:
          Stopped, DeadlineExceeded: as `Fetcher.take`, or by the thread.
          PeerError, RuntimeError: fetching failed.
          Also what `watch` raises.
        """
        try:
            batch = self._started().take(timeout, self._stop, watch)
        except ServerSilent:
            raise
        except DeadlineExceeded as error:
            raise DeadlineExceeded(f"{error}: {self._described()}") from None
        except RuntimeError as error:
            if isinstance(error.__cause__, Stopped | DeadlineExceeded | PeerError):
                raise error.__cause__ from None
            raise
        if self._supply is not None:
            self._supply.take(self._count)
        return batch

    def _described(self) -> str:
        """Returns the counts, or why there are none."""
        try:
            return self._describe()
        except (DeadlineExceeded, Stopped, RuntimeError) as error:
            return str(error)

    def _started(self) -> Fetcher[Batch]:
        if self._fetcher is None:
            self._supply = supply_of(self._info)
            self._fetcher = self._start()
        return self._fetcher

    def ready(self) -> bool:
        """Returns whether a batch is there. Always False if none is fetched in advance."""
        return self._started().ready()

    def has_more(self) -> bool:
        """As `ReplayReader.has_more`."""
        return has_more(self._supply, self._info, self._count)

    def drop(self) -> Fetcher[Batch] | None:
        """Returns the current fetcher, to be closed; the next batch comes from a new one."""
        fetcher, self._fetcher = self._fetcher, None
        return fetcher

    def close(self) -> None:
        """Ends the thread."""
        if self._fetcher is not None:
            self._fetcher.close()
