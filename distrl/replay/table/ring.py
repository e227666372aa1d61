"""Which unrolls a uniform or prioritized table holds, and which it samples; not their data."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from distrl.replay.buffer import ReplayConfig
from distrl.replay.table.rate_limiter import RateLimiter
from distrl.replay.table.sampler import Sampler, TableView, checked
from distrl.replay.table.sum_tree import SumTree


class Choice:
    """What is sampled: `places` and `keys`, int64 `[n]`, and `probability`, float32 `[n]`."""

    __slots__ = ("keys", "places", "probability")

    def __init__(self, places: np.ndarray, keys: np.ndarray, probability: np.ndarray):
        self.places, self.keys, self.probability = places, keys, probability


class Ring:
    """The newest `max_size` unrolls; sampled with replacement.

    An unroll's key is its number in the order of inserts; its place is `key % max_size`. Not
    thread safe.
    """

    def __init__(
        self,
        config: ReplayConfig,
        limiter: RateLimiter,
        rng: np.random.Generator,
        sums: np.ndarray | None = None,
        priorities: np.ndarray | None = None,
    ):
        """Args:
        config: of a uniform or prioritized table.
        limiter: with the counts.
        rng: for the choice of samples.
        sums: float64, where the sum tree of a prioritized table is kept; None: here.
        priorities: float64 `[max_size]`, where priorities are kept, by place; None: here.
        """
        self.counts = limiter
        self._max_size = config.max_size
        self._rng = rng
        self._sums = sums
        self._priorities = np.zeros(config.max_size) if priorities is None else priorities
        self._tree: SumTree | None = None
        self.use(config)

    def use(self, config: ReplayConfig) -> None:
        """Samples as `config` says from now on; where it is not as before, `rebuild` comes next."""
        self._exponent = config.priority_exponent
        self._initial_priority = config.initial_priority
        self._initial_weight = self._weights(np.array(config.initial_priority, np.float64))
        if config.table != "prioritized":
            self._tree = None
        elif self._tree is None:
            self._tree = SumTree(self._max_size, self._sums)

    def expect(self, config: ReplayConfig) -> None:
        """Prepares for a change to `config`, while what was before is still in force.

        The priorities of a table that had none begin as those of new unrolls; others stay.
        """
        if self._tree is None:
            self._priorities[:] = config.initial_priority

    @property
    def is_weighted(self) -> bool:
        """Whether unrolls have weights, which `prepare` sets."""
        return self._tree is not None

    def rebuild(self) -> None:
        """Makes the sums anew, from the priorities of the unrolls that are there."""
        if self._tree is not None:
            places = self.present()
            self._tree.reset(places, self._weights(self._priorities[places]))

    def present(self) -> np.ndarray:
        """Places of the unrolls that are there, the oldest first: int64 `[size]`."""
        return np.arange(self.counts.deletes, self.counts.inserts) % self._max_size

    def reseed(self, seed: Sequence[int]) -> None:
        """Makes the choices that follow a function of `seed`."""
        self._rng = np.random.default_rng(seed)

    def _weights(self, priorities: np.ndarray) -> np.ndarray:
        # As in Reverb, priority 0 means never, whatever the exponent.
        return np.where(priorities == 0, 0.0, priorities**self._exponent)

    def prepare(self, count: int) -> np.ndarray:
        """Sets the first weights of the next `count` unrolls, at most `max_size`.

        Returns:
          their places, int64 `[count]`.
        """
        first = self.counts.inserts
        places = np.arange(first, first + count) % self._max_size
        if self._tree is not None:
            self._priorities[places] = self._initial_priority
            self._tree.set(places, np.full(count, self._initial_weight))
        return places

    def oldest(self, count: int) -> np.ndarray:
        """Places of the unrolls that must go before `count` more come: int64 `[n]`."""
        counts = self.counts
        excess = max(0, counts.size + count - self._max_size)
        return np.arange(counts.deletes, counts.deletes + excess) % self._max_size

    def insert(self, count: int) -> None:
        """Counts the unrolls of the last `prepare`; the oldest ones are gone."""
        counts = self.counts
        counts.inserts += count
        counts.deletes = max(counts.deletes, counts.inserts - self._max_size)

    def choose(self, count: int, sampler: Sampler | None = None) -> Choice:
        """Places of samples; they are not counted yet. Args: sampler: instead of the table's."""
        counts = self.counts
        oldest, size = counts.deletes, counts.size
        if sampler is not None:
            view = TableView(counts, self._priorities)
            numbers, probability = checked(sampler, self._rng, count, view)
            keys = oldest + numbers
            places = keys % self._max_size
        elif self._tree is not None and (total := self._tree.total) > 0:
            places = self._tree.find(self._rng.random(count) * total)
            probability = (self._tree.get(places) / total).astype(np.float32)
            keys = oldest + (places - oldest) % self._max_size
        else:
            keys = oldest + self._rng.integers(size, size=count)
            places = keys % self._max_size
            probability = np.full(count, 1.0 / size, np.float32)
        return Choice(places, keys, probability)

    def update_priorities(self, keys: np.ndarray, priorities: np.ndarray) -> None:
        """As `ReplayBuffer.update_priorities`."""
        if self._tree is None:
            return
        keys = keys.astype(np.int64)
        counts = self.counts
        present = (keys >= counts.deletes) & (keys < counts.inserts)
        if present.any():
            places, priorities = keys[present] % self._max_size, priorities[present]
            self._priorities[places] = priorities
            self._tree.set(places, self._weights(priorities))

    def priorities(self) -> np.ndarray | None:
        """Of the unrolls that are there, the oldest first, float64 `[size]`; None: all alike."""
        return None if self._tree is None else self._priorities[self.present()]

    def set_priorities(self, keys: np.ndarray, priorities: np.ndarray) -> None:
        """Of keys int64 `[n]`, which `restore` then says are there; priorities float64 `[n]`."""
        self._priorities[keys % self._max_size] = priorities

    @property
    def rng_state(self) -> Mapping[str, Any]:
        """Of the choice of samples; plain data for JSON."""
        return self._rng.bit_generator.state

    @rng_state.setter
    def rng_state(self, state: Mapping[str, Any]) -> None:
        self._rng.bit_generator.state = state

    def restore(self, deletes: int, inserts: int) -> None:
        """Makes counts and sums anew: the keys from `deletes` to `inserts` are there."""
        self.counts.inserts, self.counts.deletes = inserts, deletes
        self.rebuild()
