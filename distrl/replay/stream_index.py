"""Finds the place of a stream by its id."""

import numpy as np


class StreamIndex:
    """Places 0, 1, ... of streams, in the order in which they became known."""

    def __init__(self, ids: np.ndarray):
        """Args: ids: int32 `[n]`, known from the start, each once."""
        self._set(ids.copy())

    def _set(self, ids: np.ndarray) -> None:
        self._ids = ids
        self._order = np.argsort(ids)
        self._sorted = ids[self._order]

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def ids(self) -> np.ndarray:
        """By place, int32 `[n]`."""
        return self._ids

    def find(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Places of `ids`, and which of them are known; the places of others mean nothing."""
        if not len(self._ids):
            return np.zeros(len(ids), np.intp), np.zeros(len(ids), bool)
        at = np.searchsorted(self._sorted, ids)
        at[at == len(self._sorted)] = 0
        return self._order[at], self._sorted[at] == ids

    def add(self, ids: np.ndarray) -> None:
        """Makes `ids` known, none of which were."""
        self._set(np.concatenate([self._ids, ids]))
