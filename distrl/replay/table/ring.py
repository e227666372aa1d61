"""The index of a uniform or prioritized table: the unrolls that it holds and samples."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from distrl.errors import ConfigError
from distrl.param_versions import lags
from distrl.replay.config import ReplayConfig
from distrl.replay.sampler import Sampler, TableView, checked_choice
from distrl.replay.table.rate_limiter import RateLimiter
from distrl.replay.table.sum_tree import SumTree
from distrl.types import Trajectory

_CHUNK = 1024  # unrolls whose versions are read at a time

Indices = slice | npt.NDArray[np.int64]


def span(first: int, count: int, size: int) -> Indices:
    """Returns the indices of `count` entries from `first` on, in a circular buffer of `size`."""
    first %= size
    if first + count <= size:
        return slice(first, first + count)
    return np.arange(first, first + count) % size


def by_priority(config: ReplayConfig) -> bool:
    """Returns whether a table samples by priority. Raises ConfigError for one that isn't a ring."""
    if config.table not in ("uniform", "prioritized"):
        raise ConfigError(
            f"replay.table={config.table}: it is not known how to sample from it; uniform and "
            "prioritized are"
        )
    return config.table == "prioritized"


class Draw(NamedTuple):
    """Unrolls chosen for a sample."""

    indices: npt.NDArray[np.int64]  # int64 [n], in the ring
    keys: npt.NDArray[np.int64]  # int64 [n]
    probability: npt.NDArray[np.float32]  # float32 [n]


class Ring:
    """The newest `max_size` unrolls, sampled with replacement.

    An unroll's key is its number in insertion order; its index is `key % max_size`. Not thread
    safe.
    """

    def __init__(
        self,
        config: ReplayConfig,
        limiter: RateLimiter,
        rng: np.random.Generator,
        sums: npt.NDArray[Any] | None = None,
        priorities: npt.NDArray[Any] | None = None,
        largest: npt.NDArray[Any] | None = None,
    ):
        """Args:
        config: settings of a uniform or prioritized table.
        limiter: the table's counts.
        rng: the source of samples' randomness.
        sums: float64, storage for a prioritized table's sum tree; None: allocated here.
        priorities: float64 `[max_size]`, storage for priorities by index; None: allocated here.
        largest: float64 `[1]`, storage for the largest priority so far; None: allocated here.
        """
        self.counts = limiter
        self._max_size = config.max_size
        self._rng = rng
        self._sums = sums
        self._priorities = np.zeros(config.max_size) if priorities is None else priorities
        self._largest = np.zeros(1) if largest is None else largest
        self._tree: SumTree | None = None
        self.use(config)

    def use(self, config: ReplayConfig) -> None:
        """Samples as `config` says from now on; if that is a change, `rebuild` must follow.

        Raises:
          ConfigError: see `by_priority`.
        """
        self._exponent = config.priority_exponent
        self._all_zero_said = False
        self._initial_priority = config.initial_priority
        if not by_priority(config):
            self._tree = None
        elif self._tree is None:
            self._tree = SumTree(self._max_size, self._sums)

    def prepare_change(self, config: ReplayConfig) -> None:
        """Prepares a change to `config` while the previous settings are still in force.

        In a table without priorities, all unrolls get that of new ones; existing priorities stay.

        Raises:
          ConfigError: see `by_priority`; nothing has changed.
        """
        by_priority(config)
        if self._tree is None:
            self._priorities[:] = max(config.initial_priority, self.largest)

    @property
    def largest(self) -> float:
        """The largest priority that an update has set so far; 0 before the first."""
        return float(self._largest[0])

    @largest.setter
    def largest(self, priority: float) -> None:
        self._largest[0] = priority

    @property
    def is_weighted(self) -> bool:
        """Whether unrolls have weights, which `prepare` sets."""
        return self._tree is not None

    @property
    def mass(self) -> float:
        """The sum of the unrolls' weights, `priority ** priority_exponent`; 1 each if uniform."""
        return float(self.counts.size if self._tree is None else self._tree.total)

    def rebuild(self) -> None:
        """Recomputes the sum tree from the priorities of the unrolls in the table."""
        if self._tree is not None:
            indices = self.present()
            self._tree.reset(indices, self._weights(self._priorities[indices]))

    def present(self) -> npt.NDArray[Any]:
        """Returns the indices of the unrolls in the table, the oldest first: int64 `[size]`."""
        return np.arange(self.counts.deletes, self.counts.inserts) % self._max_size

    def reseed(self, seed: Sequence[int]) -> None:
        """Restarts the random generator from `seed`."""
        self._rng = np.random.default_rng(seed)

    def _weights(self, priorities: npt.NDArray[Any]) -> npt.NDArray[Any]:
        # As in Reverb, priority 0 means never, whatever the exponent.
        return np.where(priorities == 0, 0.0, priorities**self._exponent)

    def prepare(self, count: int, priorities: npt.NDArray[np.float64] | None = None) -> Indices:
        """Sets the weights of the next `count` unrolls, at most `max_size`.

        Args:
          count: number of unrolls.
          priorities: float64 `[count]`; None: they get the largest priority so far, so that each is
            likely to be sampled soon (Schaul et al. 2016, algorithm 1).

        Returns:
          Their indices, `[count]`.
        """
        first = self.counts.inserts
        if self._tree is not None:
            indices = np.arange(first, first + count) % self._max_size
            if priorities is None:
                priorities = np.full(count, max(self._initial_priority, self.largest))
            self._priorities[indices] = priorities
            self._tree.set(indices, self._weights(priorities))
        return span(first, count, self._max_size)

    def evicted(self, count: int) -> Indices:
        """Returns the indices of the unrolls that `count` inserts evict: `[n]`."""
        counts = self.counts
        excess = max(0, counts.size + count - self._max_size)
        return span(counts.deletes, excess, self._max_size)

    def insert(self, count: int) -> None:
        """Counts the unrolls of the last `prepare`, and the deletion of the oldest ones."""
        counts = self.counts
        counts.inserts += count
        counts.deletes = max(counts.deletes, counts.inserts - self._max_size)

    def remove(self, count: int) -> None:
        """Counts the deletion of the `count` oldest unrolls, which are no longer sampled."""
        if self._tree is not None:
            self._tree.set(self.oldest(count), np.zeros(count))
        self.counts.deletes += count

    def oldest(self, count: int) -> npt.NDArray[Any]:
        """Returns the indices of the `count` oldest unrolls: int64 `[count]`."""
        deletes = self.counts.deletes
        return np.arange(deletes, deletes + count) % self._max_size

    def count_outdated(
        self, oldest: int, versions: Callable[[npt.NDArray[Any]], npt.NDArray[Any]]
    ) -> int:
        """Returns how many of the oldest unrolls, without a gap, are older than a version.

        Args:
          oldest: the version.
          versions: returns the versions of their actions, int32 `[T, n]`, at indices in the ring.
        """
        size, count, step = self.counts.size, 0, 1
        while count < size:
            indices = self.oldest(min(count + step, size))[count:]
            old = lags(oldest, versions(indices)).max(axis=0) > 0
            if not old.all():
                return count + int(old.argmin())
            count += len(indices)
            step = min(2 * step, _CHUNK)
        return count

    def choose(
        self,
        count: int,
        sampler: Sampler | None = None,
        read: Callable[[npt.NDArray[Any]], Trajectory] | None = None,
    ) -> Draw:
        """Draws samples; they are not counted yet.

        Args:
          count: number of samples.
          sampler: replaces the table's own; None: there is none.
          read: for a sampler, returns copies of the unrolls at indices in the ring.
        """
        counts = self.counts
        oldest, size = counts.deletes, counts.size
        if sampler is not None:
            assert read is not None
            priorities = None if self._tree is None else self._priorities
            view = TableView(oldest, size, self._max_size, priorities, read)
            offsets, probability = checked_choice(sampler, self._rng, count, view)
            keys = oldest + offsets
            indices = keys % self._max_size
        elif self._tree is not None and (total := self._tree.total) > 0:
            indices = self._tree.find(self._rng.random(count) * total)
            probability = (self._tree.get(indices) / total).astype(np.float32)
            keys = oldest + (indices - oldest) % self._max_size
        else:
            if self._tree is not None and not self._all_zero_said:
                self._all_zero_said = True
                logging.getLogger(__name__).warning(
                    "all %d unrolls in the table have priority 0: they are sampled uniformly", size
                )
            # Less work than `integers`, which begins with Python of its own.
            keys = oldest + (self._rng.random(count) * size).astype(np.int64)
            indices = keys % self._max_size
            probability = np.full(count, 1.0 / size, np.float32)
        return Draw(indices, keys, probability)

    def update_priorities(self, keys: npt.NDArray[np.uint64], priorities: npt.NDArray[Any]) -> None:
        """As `ReplayReader.update_priorities`."""
        if self._tree is None:
            return
        keys = keys.astype(np.int64)
        counts = self.counts
        present = (keys >= counts.deletes) & (keys < counts.inserts)
        if present.any():
            indices, priorities = keys[present] % self._max_size, priorities[present]
            self.largest = max(self.largest, float(priorities.max()))
            self._priorities[indices] = priorities
            self._tree.set(indices, self._weights(priorities))

    def priorities(self) -> npt.NDArray[Any] | None:
        """Returns priorities float64 `[size]`, the oldest unroll's first; None: there are none."""
        return None if self._tree is None else self._priorities[self.present()]

    def set_priorities(self, keys: npt.NDArray[np.int64], priorities: npt.NDArray[Any]) -> None:
        """Sets priorities, float64 `[n]`, of keys, int64 `[n]`; `restore` must follow."""
        self._priorities[keys % self._max_size] = priorities

    @property
    def rng_state(self) -> Mapping[str, Any]:
        """The random generator's state as plain data for JSON."""
        return self._rng.bit_generator.state

    @rng_state.setter
    def rng_state(self, state: Mapping[str, Any]) -> None:
        self._rng.bit_generator.state = state

    def restore(self, deletes: int, inserts: int) -> None:
        """Sets the counts, so that the keys from `deletes` to `inserts` are in the table."""
        self.counts.inserts, self.counts.deletes = inserts, deletes
        self.rebuild()
