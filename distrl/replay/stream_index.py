"""Finds the slot of a stream by its id."""

from typing import Any

import numpy as np
import numpy.typing as npt


class StreamIndex:
    """Assigns slots 0, 1, ... to streams in the order in which they are added."""

    def __init__(self, ids: npt.NDArray[np.int32]):
        """Args: ids: int32 `[n]`, the initial streams, without duplicates."""
        self._set(ids.copy())

    def _set(self, ids: npt.NDArray[np.int32]) -> None:
        self._ids = ids
        self._order = np.argsort(ids)
        self._sorted = ids[self._order]

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def ids(self) -> npt.NDArray[Any]:
        """Stream ids by slot, int32 `[n]`."""
        return self._ids

    def find(self, ids: npt.NDArray[np.int32]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Returns the slots of `ids`, and which of them are known; other slots are arbitrary."""
        if not len(self._ids):
            return np.zeros(len(ids), np.intp), np.zeros(len(ids), bool)
        ranks = np.searchsorted(self._sorted, ids)
        ranks[ranks == len(self._sorted)] = 0
        return self._order[ranks], self._sorted[ranks] == ids

    def add(self, ids: npt.NDArray[np.int32]) -> None:
        """Adds `ids`, none of which is known yet."""
        self._set(np.concatenate([self._ids, ids]))
