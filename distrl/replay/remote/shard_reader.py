"""Fetches the items of one shard ahead."""

import collections
import math
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from distrl.errors import ServerSilent
from distrl.replay.columns import Columns
from distrl.replay.remote.items import Item
from distrl.replay.remote.shard_choice import ShardStatus
from distrl.replay.table.info import TableInfo
from distrl.types import Sample


class Shard(Protocol):
    """The required interface of a shard's client.

    Attributes:
      kind: kind of the tables that it saves; see `table.files.write_facts`.
    """

    kind: str

    @property
    def is_prioritized(self) -> bool:
        """Whether it samples by priority, as far as it is known without asking its server."""

    @property
    def columns(self) -> Columns:
        """The columns of an unroll."""

    def make_sampler(self) -> Any:
        """Returns a sampler for `item`; it has a method `Close`."""

    def item(self, sampler: Any) -> Item:
        """Returns the next item."""

    def watch(self) -> Callable[[], None]:
        """Returns a watch over its server; see `ServerCalls.watch`."""

    def reconnect(self, error: Exception, lost: str) -> None:
        """Waits for a new server after the death of the current one."""

    def batch(self, items: Sequence[Item]) -> Sample:
        """Returns a sample of these items."""

    def send_priorities(
        self, keys: npt.NDArray[np.uint64], priorities: npt.NDArray[Any], largest: float
    ) -> None:
        """Sets priorities; `largest` is the largest of all shards."""

    def remove(self, keys: npt.NDArray[np.uint64], oldest: int) -> None:
        """Removes unrolls, as `ReplayReader.discard` does; raises if the server is gone."""

    def info(self) -> TableInfo:
        """Returns the table's counts and limits."""

    def save(self, folder: Path, timeout: float) -> dict[str, Any]:
        """Writes the table."""

    def close(self) -> None:
        """Closes the client."""


class ShardReader:
    """Fetches a shard's items ahead in a thread.

    Attributes:
      error: the error that ended the thread, to be raised by the user.
    """

    def __init__(
        self,
        shard: Shard,
        index: int,
        lock: threading.Lock,
        changed: threading.Condition,
        ahead: int,
    ):
        """Args:
        shard: the shard's client.
        index: the shard's index.
        lock: shared by all readers.
        changed: a condition of `lock`, notified of items and errors.
        ahead: maximum number of items to fetch ahead.
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
        self._watch: Callable[[], None] | None = None  # while there are no items
        self._server_gone = False
        self._server_error: Exception | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"shard {index}", daemon=True)
        self._thread.start()

    # Called with `changed` held:

    def status(self) -> ShardStatus:
        """Returns the shard's current state."""
        if self._items:
            return ShardStatus(True, self._last)
        waited = math.inf if self._server_gone else time.monotonic() - self._since
        return ShardStatus(False, self._last, waited)

    def pop(self) -> Item:
        """Returns the first of the fetched items."""
        item = self._items.popleft()
        if not self._items:
            self._since = time.monotonic()
        if 2 * len(self._items) <= self._ahead:  # not for each item: waking a thread is slow
            self._room.notify()
        return item

    def check_server(self) -> None:
        """Ends the wait for the next item if the server is gone. Call this while waiting."""
        if self._items or self._sampler is None:
            self._watch = None
            return
        if self._watch is None:
            self._watch = self._shard.watch()
        try:
            self._watch()
        except (RuntimeError, ServerSilent) as error:
            self._server_error = error
            self._end_sampler()

    def _end_sampler(self) -> None:
        """Closes the sampler, which ends the wait for its next item."""
        sampler, self._sampler = self._sampler, None
        if sampler is not None:  # in a thread, because it may take seconds
            threading.Thread(target=sampler.Close, name="close a sampler", daemon=True).start()

    # Called in the thread:

    def _run(self) -> None:
        try:
            while not self._closed:
                try:
                    self._fetch()
                except RuntimeError as error:
                    with self._changed:
                        if self._closed:
                            return
                        self._end_sampler()
                        self._server_gone = True  # no batch waits for it; its fetched items stay
                        cause, self._server_error = self._server_error or error, None
                    self._shard.reconnect(cause, "items that were fetched in advance")
        except Exception as error:  # raised by the user
            with self._changed:
                self.error = error
                self._changed.notify_all()

    def _fetch(self) -> None:
        """Fetches items until an error, or until this is closed."""
        sampler = self._shard.make_sampler()
        with self._changed:
            self._sampler = sampler
            self._since, self._server_gone = time.monotonic(), False
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
