"""A served table as a shard of a larger one, for `ShardedReplayBuffer`."""

import collections
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from distrl.replay.columns import Columns
from distrl.replay.remote.items import Item, joined
from distrl.replay.served.client import ServedReplayBuffer
from distrl.replay.served.table import FetchStop
from distrl.replay.table.info import TableInfo
from distrl.types import Sample

_INDEX_BITS = 48  # bits of a key below the shard's index: tables count their unrolls from 0


class _ItemSampler(FetchStop):
    """Holds the items of the last batch that were not taken yet."""

    def __init__(self, stop: threading.Event | None) -> None:
        super().__init__(stop)
        self.items: collections.deque[Item] = collections.deque()


class ServedShard:
    """A `Shard` of a table whose servers each have some actors' streams.

    Attributes:
      is_prioritized: whether the last batch was sampled by priority; False before the first.
    """

    kind = "files"

    def __init__(
        self, client: ServedReplayBuffer, index: int, per_item: int, stop: threading.Event | None
    ) -> None:
        """Args:
        client: a client of the shard's table; closed with this one.
        index: the shard's index.
        per_item: unrolls of an item.
        stop: set when the program stops.
        """
        self._client, self._index, self._per_item, self._stop = client, index, per_item, stop
        self.is_prioritized = False

    @property
    def columns(self) -> Columns:
        """See `Shard`."""
        return self._client.columns

    def make_sampler(self) -> Any:
        """See `Shard`."""
        return _ItemSampler(self._stop)

    def item(self, sampler: Any) -> Item:
        """See `Shard`; a batch is fetched with its first item."""
        if not sampler.items:
            taken = self._client.table.take(sampler, None)
            self.is_prioritized = taken.is_prioritized
            rest, per_item = taken.block, self._per_item
            for start in range(0, len(taken.sample.key), per_item):
                block, rest = rest.split(per_item, self.columns.has_time)
                sampler.items.append(
                    Item(
                        int(taken.sample.key[start]) | self._index << _INDEX_BITS,
                        float(taken.sample.trajectory.probability[start]),
                        taken.mass,
                        taken.size // per_item,
                        block,
                    )
                )
        item: Item = sampler.items.popleft()
        return item

    def watch(self) -> Callable[[], None]:
        """See `Shard`; calls of the server have their own deadlines."""
        return lambda: None

    def reconnect(self, error: Exception, lost: str) -> None:
        """See `Shard`; calls connect again by themselves."""
        raise error

    def batch(self, items: Sequence[Item]) -> Sample:
        """See `Shard`."""
        return joined(items, self.columns)

    def send_priorities(
        self, keys: npt.NDArray[np.uint64], priorities: npt.NDArray[Any], largest: float
    ) -> None:
        """See `Shard`."""
        in_shard = self._in_shard(keys)
        self._client.table.update_priorities(
            self._key(keys[in_shard]), priorities[in_shard], float(largest)
        )

    def remove(self, keys: npt.NDArray[np.uint64], oldest: int) -> None:
        """See `Shard`."""
        self._client.table.discard(self._key(keys[self._in_shard(keys)]), oldest)

    def _in_shard(self, keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        return keys >> np.uint64(_INDEX_BITS) == self._index

    def _key(self, keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        return keys & np.uint64((1 << _INDEX_BITS) - 1)

    def info(self) -> TableInfo:
        """See `Shard`."""
        return self._client.info()

    def save(self, folder: Path, timeout: float) -> dict[str, Any]:
        """See `Shard`."""
        return self._client.save(folder, timeout)

    def close(self) -> None:
        """See `Shard`."""
        self._client.close()
