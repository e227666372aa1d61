"""The slots of a table in shared memory: which are free, and what the others hold.

A slot's state is in its word (state, and the client that holds it) and its key. Each is written
atomically, in an order that leaves a consistent table if the process dies between two of them. All
else (free slots, order, counts, sums) follows from words and keys, and `repair` recomputes it.
Nothing here locks: every method needs the table's lock.
"""

import abc
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from distrl.replay.sampler import Sampler
from distrl.replay.table.rate_limiter import RateLimiter
from distrl.replay.table.ring import Draw, Ring, span
from distrl.types import Trajectory

# Indices into the table's `ints`; the first three are RateLimiter's.
INSERTS, SAMPLES, _DELETES, PENDING, _FREE_FIRST, _FREE_COUNT, _FIRST = range(7)

# A slot goes FREE -> WRITING -> READY -> FREE, or in a queue READY -> TAKEN -> FREE. When a client
# dies, its WRITING slots become FREE, and its TAKEN slots READY.
FREE, WRITING, READY, TAKEN = range(4)
_STATE_BITS = 2


class TableSlots(abc.ABC):
    """Slots by state; subclasses define how READY ones are ordered and chosen."""

    def __init__(self, ints: memoryview, arrays: dict[str, npt.NDArray[Any]]):
        """Args:
        ints: int64 numbers; see above.
        arrays: int64 `[slots]` each: "word", "key", "free" (a circular buffer of free slots),
          "order", "time" (of the insert, in nanoseconds of the monotonic clock).
        """
        self._ints = ints
        self.word, self.key = arrays["word"], arrays["key"]
        self._free, self._order, self._time = arrays["free"], arrays["order"], arrays["time"]

    @property
    @abc.abstractmethod
    def size(self) -> int:
        """Number of unrolls in the table."""

    @abc.abstractmethod
    def can_insert(self, count: int) -> int:
        """Returns how many of `count` unrolls can be reserved now; none if it is 0 or less."""

    @abc.abstractmethod
    def room(self, count: int) -> int:
        """As `can_insert`, regardless of the rate limiter."""

    @abc.abstractmethod
    def can_sample(self, count: int) -> bool:
        """Returns whether `count` unrolls can be sampled now."""

    def has_room(self, count: int, batch_size: int) -> bool:
        """Returns whether a wait to insert `count` unrolls ends."""
        return self.can_insert(1) > 0

    @abc.abstractmethod
    def commit(
        self, slots: npt.NDArray[Any], priorities: npt.NDArray[np.float64] | None = None
    ) -> None:
        """Inserts the unrolls in reserved slots, whose data is complete.

        Args:
          slots: int64 `[n]`.
          priorities: `[n]`, see `Ring.prepare`.
        """

    @abc.abstractmethod
    def _restore(self) -> None:
        """Recomputes order and counts; may free slots whose insert was not finished."""

    def reserve(self, client: int, count: int) -> npt.NDArray[Any]:
        """Returns free slots to write to, now reserved: int64 `[count]`."""
        ints, total = self._ints, len(self._free)
        slots = np.array(self._free[span(ints[_FREE_FIRST], count, total)])
        self.key[slots] = -1  # tells readers that their unroll is overwritten
        self.word[slots] = WRITING | client << _STATE_BITS
        ints[_FREE_FIRST] = (ints[_FREE_FIRST] + count) % total
        ints[_FREE_COUNT] -= count
        ints[PENDING] += count
        return slots

    def release(self, client: int, slots: npt.NDArray[Any]) -> None:
        """Frees those of `slots` that this client has reserved and not committed."""
        slots = slots[self.word[slots] == (WRITING | client << _STATE_BITS)]
        self._set_free(slots)
        self._ints[PENDING] -= len(slots)

    def holds(self, client: int) -> bool:
        """Returns whether the client holds slots."""
        return bool((self.word >> _STATE_BITS == client).any())

    def busy(self) -> bool:
        """Returns whether slots are being written or read: that will end, and may admit others."""
        state = self.word & 3
        return bool(((state == WRITING) | (state == TAKEN)).any())

    @abc.abstractmethod
    def present(self) -> npt.NDArray[Any]:
        """Returns the slots of the unrolls in the table, the oldest first: int64 `[size]`."""

    def inserted(self) -> npt.NDArray[Any]:
        """Returns the insertion times of `present()`: int64 `[size]`."""
        return self._time[self.present()]

    def _set_free(self, slots: npt.NDArray[Any]) -> None:
        if len(slots) == 0:
            return
        ints, total = self._ints, len(self._free)
        self.word[slots] = FREE
        self._free[span(ints[_FREE_FIRST] + ints[_FREE_COUNT], len(slots), total)] = slots
        ints[_FREE_COUNT] += len(slots)

    def repair(self, gone: Sequence[int]) -> None:
        """Makes the table consistent after an interruption; takes back slots of clients `gone`."""
        state = self.word & 3
        lost = np.isin(self.word >> _STATE_BITS, gone)
        self.word[lost & (state == WRITING)] = FREE
        self.word[lost & (state == TAKEN)] = READY
        self._restore()
        free = np.flatnonzero(self.word == FREE)
        free = free[np.argsort(self.key[free], kind="stable")]
        ints = self._ints
        self._free[: len(free)] = free
        ints[_FREE_FIRST], ints[_FREE_COUNT] = 0, len(free)
        ints[PENDING] = int((self.word & 3 == WRITING).sum())

    def restore(self, first: int, count: int, samples: int) -> None:
        """Declares that the first `count` slots hold the unrolls with keys from `first` on.

        Nothing may have been inserted yet.
        """
        self.key[:count] = np.arange(first, first + count)
        self._time[:count] = time.monotonic_ns()
        self.word[:count] = READY
        self._ints[INSERTS], self._ints[SAMPLES] = first + count, samples
        self.repair([])

    def _sorted(self, *states: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Returns the slots in one of these states, sorted by keys, and the keys."""
        slots = np.flatnonzero(np.isin(self.word & 3, states))
        keys = self.key[slots]
        order = np.argsort(keys)
        return slots[order], keys[order]


class QueueSlots(TableSlots):
    """Each unroll is taken once, the oldest first."""

    def __init__(self, ints: memoryview, arrays: dict[str, npt.NDArray[Any]], max_size: int):
        super().__init__(ints, arrays)
        self._max_size = max_size

    @property
    def size(self) -> int:
        return self._ints[INSERTS] - self._ints[SAMPLES]

    def can_insert(self, count: int) -> int:
        ints = self._ints
        return min(count, self._max_size - self.size - ints[PENDING], ints[_FREE_COUNT])

    def room(self, count: int) -> int:
        return self.can_insert(count)

    def can_sample(self, count: int) -> bool:
        return self.size >= count

    def commit(
        self, slots: npt.NDArray[Any], priorities: npt.NDArray[np.float64] | None = None
    ) -> None:
        ints, count = self._ints, len(slots)
        first = ints[INSERTS]
        self._order[span(ints[_FIRST] + self.size, count, len(self._order))] = slots
        self.key[slots] = np.arange(first, first + count)
        self._time[slots] = time.monotonic_ns()
        self.word[slots] = READY
        ints[INSERTS] += count
        ints[PENDING] -= count

    def present(self) -> npt.NDArray[Any]:
        return np.array(self._order[span(self._ints[_FIRST], self.size, len(self._order))])

    def take(self, client: int, count: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Takes the oldest unrolls for a client; returns slots and keys, int64 `[count]`."""
        ints, total = self._ints, len(self._order)
        slots = np.array(self._order[span(ints[_FIRST], count, total)])
        self.word[slots] = TAKEN | client << _STATE_BITS
        ints[_FIRST] = (ints[_FIRST] + count) % total
        ints[SAMPLES] += count
        return slots, self.key[slots]

    def done(self, slots: npt.NDArray[Any]) -> None:
        """Frees taken slots, whose unrolls have been read."""
        self._set_free(slots)

    def give_back(self, client: int, slots: npt.NDArray[Any]) -> None:
        """Returns taken slots whose unrolls have not been read to the queue."""
        held = slots[self.word[slots] == (TAKEN | client << _STATE_BITS)]
        self.word[held] = READY
        self.repair([])

    def _restore(self) -> None:
        ints = self._ints
        slots, keys = self._sorted(READY, TAKEN)
        # Unrolls of an unfinished insert that follow without a gap are in the table.
        new = keys >= ints[INSERTS]
        wanted = ints[INSERTS] + np.arange(int(new.sum()))
        complete = int(np.cumprod(keys[new] == wanted).sum())
        self.word[slots[new][complete:]] = FREE
        slots, _ = self._sorted(READY)
        self._order[: len(slots)] = slots
        ints[_FIRST] = 0
        ints[INSERTS] += complete
        ints[SAMPLES] = ints[INSERTS] - len(slots)


class RingSlots(TableSlots):
    """The newest `max_size` unrolls; `order` has the slot of each index of a `Ring`."""

    def __init__(
        self,
        ints: memoryview,
        arrays: dict[str, npt.NDArray[Any]],
        max_size: int,
        limiter: RateLimiter,
        ring: Ring,
    ):
        super().__init__(ints, arrays)
        self._max_size = max_size
        self.counts = limiter
        self.ring = ring

    @property
    def size(self) -> int:
        return self.counts.size

    def can_insert(self, count: int) -> int:
        count = self.room(count)
        return count and self.counts.can_insert(count, self._max_size, self._ints[PENDING])

    def has_room(self, count: int, batch_size: int) -> bool:
        # Not for each unroll that a sample admits: waking a writer costs as much as the sample.
        room = self.room(count)
        if room <= 0:
            return False
        least = room if self.can_sample(batch_size) else 1
        return self.counts.admits(least, self._ints[PENDING])

    def room(self, count: int) -> int:
        return min(count, self._ints[_FREE_COUNT], self._max_size)

    def can_sample(self, count: int) -> bool:
        return self.counts.can_sample(count)

    def commit(
        self, slots: npt.NDArray[Any], priorities: npt.NDArray[np.float64] | None = None
    ) -> None:
        count = len(slots)
        first = self.counts.inserts
        self._set_free(self._order[self.ring.evicted(count)])
        indices = self.ring.prepare(count, priorities)
        self._order[indices] = slots
        self.key[slots] = np.arange(first, first + count)
        self._time[slots] = time.monotonic_ns()
        self.word[slots] = READY
        self.ring.insert(count)
        self._ints[PENDING] -= count

    def present(self) -> npt.NDArray[Any]:
        return self._order[self.ring.present()]

    def remove(self, count: int) -> None:
        """Removes the `count` oldest unrolls."""
        self._set_free(self._order[self.ring.oldest(count)])
        self.ring.remove(count)

    def outdated(
        self, oldest: int, versions: Callable[[npt.NDArray[Any]], npt.NDArray[Any]]
    ) -> int:
        """As `Ring.count_outdated`, but `versions` is given slots."""
        return self.ring.count_outdated(oldest, lambda indices: versions(self._order[indices]))

    def choose(
        self,
        count: int,
        sampler: Sampler | None = None,
        read: Callable[[npt.NDArray[Any]], Trajectory] | None = None,
    ) -> tuple[npt.NDArray[Any], Draw]:
        """Draws samples; returns their slots, int64 `[count]`.

        Args:
          count, sampler: see `Ring.choose`.
          read: for a sampler, returns copies of the unrolls in slots.
        """
        by_index = None if read is None else lambda indices: read(self._order[indices])
        draw = self.ring.choose(count, sampler, by_index)
        return self._order[draw.indices], draw

    def overwritten(self, slots: npt.NDArray[Any], keys: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Returns which of `slots` no longer hold the unrolls with these keys: bool `[n]`."""
        return self.key[slots] != keys

    def _restore(self) -> None:
        slots, keys = self._sorted(READY)
        # An unfinished deletion or insert leaves a gap: the table is the run of consecutive keys
        # that contains the newest counted unroll, or begins just after it.
        inserts = self.counts.inserts
        starts = np.flatnonzero(np.diff(keys, prepend=-2) != 1)
        ends = np.append(starts[1:], len(keys))
        first = last = 0
        for start, end in zip(starts.tolist(), ends.tolist()):
            if keys[start] <= inserts <= keys[end - 1] + 1:
                first, last = start, end
        self.word[slots[:first]] = FREE
        self.word[slots[last:]] = FREE
        if first < last:
            self._order[keys[first:last] % self._max_size] = slots[first:last]
            self.ring.restore(int(keys[first]), int(keys[last - 1]) + 1)
        else:
            self.ring.restore(inserts, inserts)
