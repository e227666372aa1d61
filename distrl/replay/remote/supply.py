"""Counts what a client can still sample from servers' tables after the last insert."""

import math
import time
from collections.abc import Callable

from distrl.errors import DeadlineExceeded, ServerSilent
from distrl.replay.table.info import TableInfo

_LAST_BATCH_S = 10.0  # seconds that a batch which the counts promise may take


class Supply:
    """Counts the unrolls that a client has handed out; the rest of its samples it still holds."""

    def __init__(self, info: TableInfo):
        """Args: info: the table's counts before the client's first sample."""
        self._before = info.samples
        self._taken = 0
        self._missing = 0  # unrolls that the counts promise, and that did not come
        self._promised: float | None = None  # when `has` first announced the next batch

    def take(self, count: int) -> None:
        """Notes that a batch of `count` unrolls was handed out."""
        self._taken += count
        self._missing, self._promised = 0, None

    def has(self, count: int, info: TableInfo) -> bool:
        """Returns whether `count` unrolls can still be handed out; see `ReplayReader.has_more`.

        Args:
          count: number of unrolls.
          info: the table's counts now.
        """
        held = info.samples - self._before - self._taken  # unrolls that were fetched ahead
        if held < 0:  # a server has started again, and counts from 0 or from its checkpoint
            self._before += held
            held = self._missing = 0
        limits = info.limits
        if limits is None:
            admitted = info.size
        elif not math.isfinite(limits.min_diff):
            return False
        elif info.size < limits.min_size_to_sample:
            admitted = 0
        else:
            admitted = max(0, math.floor(info.error - limits.min_diff))
        promised = held + admitted - self._missing
        if promised < count:
            return False
        # The counts include items that a broken connection lost on the way, and those of several
        # servers of which none has enough for its part of a batch: more inserts may help.
        now = time.monotonic()
        self._promised = self._promised or now
        if now - self._promised < _LAST_BATCH_S:
            return True
        self._missing += promised - (count - 1)
        self._promised = None
        return False


def supply_of(ask: Callable[[], TableInfo]) -> Supply | None:
    """Returns the supply of tables, counted from now on.

    Args:
      ask: returns the counts; may wait for the servers, within its deadline.

    Returns:
      None if a server is gone: the wait for its next item reports that, or finds its new one.
    """
    try:
        return Supply(ask())
    except (DeadlineExceeded, RuntimeError):
        return None


def has_more(supply: Supply | None, ask: Callable[[], TableInfo], count: int) -> bool:
    """Returns whether there is another batch of `count` unrolls, as `ReplayReader.has_more`.

    Args:
      supply: the tables' supply since the first batch; None: there was no batch yet.
      ask: as for `supply_of`.
      count: unrolls of a batch.
    """
    try:
        info = ask()
    except (RuntimeError, ServerSilent):
        return True  # `sample` waits for the new server
    return (supply or Supply(info)).has(count, info)
