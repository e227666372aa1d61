"""Finds the slot of a stream by its id."""

import numpy as np


class StreamIndex:
    """Assigns slots 0, 1, ... to streams in the order in which they are added."""

    def __init__(self, ids: np.ndarray):
        """Args: ids: int32 `[n]`, the initial streams, without duplicates."""
        self._set(ids.copy())

    def _set(self, ids: np.ndarray) -> None:
        self._ids = ids
        self._order = np.argsort(ids)
        self._sorted = ids[self._order]

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def ids(self) -> np.ndarray:
        """Stream ids by slot, int32 `[n]`."""
        return self._ids

    def find(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the slots of `ids`, and which of them are known; other slots are arbitrary."""
        if not len(self._ids):
            return np.zeros(len(ids), np.intp), np.zeros(len(ids), bool)
        ranks = np.searchsorted(self._sorted, ids)
        ranks[ranks == len(self._sorted)] = 0
        return self._order[ranks], self._sorted[ranks] == ids

    def add(self, ids: np.ndarray) -> None:
        """Adds `ids`, none of which is known yet."""
        self._set(np.concatenate([self._ids, ids]))
