"""Takes the items of one shard ahead, for a replay of several."""

import collections
import math
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from distrl.replay.columns import Columns
from distrl.replay.reverb.calls import ServerSilent
from distrl.replay.reverb.shard_choice import Item, ShardStatus
from distrl.replay.table.info import TableInfo
from distrl.types import Sample


class Shard(Protocol):
    """A client of one shard: a `ReverbReplayBuffer`, whose methods these are."""

    @property
    def columns(self) -> Columns:
        """Of an unroll."""

    def make_sampler(self) -> Any:
        """For `item`; has a method `Close`."""

    def item(self, sampler: Any) -> Item:
        """The next item."""

    def watch(self) -> Callable[[], None]:
        """A watch over its server."""

    def wait_for_another(self, error: Exception, lost: str) -> None:
        """For a server in the place of one that is gone."""

    def batch(self, items: Sequence[Item]) -> Sample:
        """A sample of these items."""

    def send_priorities(self, keys: np.ndarray, priorities: np.ndarray) -> None:
        """Sets priorities."""

    def info(self) -> TableInfo:
        """How the table stands."""

    def save(self, folder: Path, timeout: float) -> dict[str, Any]:
        """Writes the table."""

    def close(self) -> None:
        """Ends the client."""


class Reader:
    """Takes a shard's items ahead, in a thread of its own."""

    def __init__(
        self,
        shard: Shard,
        index: int,
        lock: threading.Lock,
        changed: threading.Condition,
        ahead: int,
    ):
        """Args:
        shard: its client.
        index: of the shard.
        lock: of all readers.
        changed: by which who waits for an item, or an error, is told; of `lock`.
        ahead: items that it takes before they are asked for.
        """
        self.error: Exception | None = None
        self._shard = shard
        self._changed = changed
        self._room = threading.Condition(lock)
        self._ahead = ahead
        self._items: collections.deque[Item] = collections.deque()
        self._last: Item | None = None
        self._since = time.monotonic()
        self._sampler: Any = None
        self._watch: Callable[[], None] | None = None  # while there is nothing
        self._away = False
        self._silent: Exception | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"shard {index}", daemon=True)
        self._thread.start()

    # With `changed` held.

    def standing(self) -> ShardStatus:
        """Now."""
        if self._items:
            return ShardStatus(True, self._last)
        waited = math.inf if self._away else time.monotonic() - self._since
        return ShardStatus(False, self._last, waited)

    def pop(self) -> Item:
        """The first that it has."""
        item = self._items.popleft()
        if not self._items:
            self._since = time.monotonic()
        if 2 * len(self._items) <= self._ahead:  # not for each one: a thread is slow to wake
            self._room.notify()
        return item

    def look(self) -> None:
        """Sees to it that a server that gives nothing because it is gone is noticed."""
        if self._items or self._sampler is None:
            self._watch = None
            return
        if self._watch is None:
            self._watch = self._shard.watch()
        try:
            self._watch()
        except (RuntimeError, ServerSilent) as error:
            self._silent = error
            self._end_sampler()

    def _end_sampler(self) -> None:
        """Ends the wait for its next item."""
        sampler, self._sampler = self._sampler, None
        if sampler is not None:  # this may take seconds, and nobody has to wait for it
            threading.Thread(target=sampler.Close, name="close a sampler", daemon=True).start()

    # In its thread.

    def _run(self) -> None:
        try:
            while not self._closed:
                try:
                    self._take()
                except RuntimeError as error:
                    with self._changed:
                        if self._closed:
                            return
                        self._end_sampler()
                        self._away = True  # nobody waits for it; what it has given stays
                        cause, self._silent = self._silent or error, None
                    self._shard.wait_for_another(cause, "items that were fetched in advance")
        except Exception as error:  # raised where the next item is asked for
            with self._changed:
                self.error = error
                self._changed.notify_all()

    def _take(self) -> None:
        """Takes items until there are no more."""
        sampler = self._shard.make_sampler()
        with self._changed:
            self._sampler = sampler
            self._since, self._away = time.monotonic(), False
        while not self._closed:
            item = self._shard.item(sampler)
            with self._changed:
                while len(self._items) >= self._ahead and not self._closed:
                    self._room.wait(1.0)
                self._items.append(item)
                self._last = item
                self._changed.notify_all()

    def close(self) -> None:
        """Ends the thread."""
        with self._changed:
            self._closed = True
            self._room.notify()
            self._end_sampler()
        self._thread.join(1.0)
