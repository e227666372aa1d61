"""Counts the steps that updates consumed by their policy lag; such counts can be added up."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

REPORTED = "policy_lags"
"""Key of `LagCounts.plain` in a learner's report."""
# Lags below 2**8 have a count each; larger ones of as many bits share one if the first 8 agree.
_BITS = 8
_HALF = 2 ** (_BITS - 1)
_NUM_COUNTS = (31 - _BITS + 2) * _HALF  # enough for all of int32
_QUANTILES = {"p5": 5, "p25": 25, "p50": 50, "p75": 75, "p95": 95}


class LagCounts:
    """Counts by lag. Lags of 256 and more are rounded, by at most 1/256 of their size.

    Mean, minimum and maximum are exact.
    """

    def __init__(self) -> None:
        self._counts = np.zeros(_NUM_COUNTS, np.int64)
        self._sum, self._min, self._max = 0, 2**31, -1

    def add(self, lags: npt.NDArray[Any]) -> None:
        """Counts lags. Args: lags: int32 `[N]`, N > 0, none negative."""
        shift = np.maximum(np.frexp(lags)[1] - _BITS, 0)
        counts = np.bincount(shift * _HALF + (lags >> shift))
        self._counts[: len(counts)] += counts
        self._note(int(lags.sum(dtype=np.int64)), int(lags.min()), int(lags.max()))

    def _note(self, total: int, least: int, most: int) -> None:
        self._sum += total
        self._min, self._max = min(self._min, least), max(self._max, most)

    def plain(self) -> dict[str, Any]:
        """Returns what `merge` takes, as plain data: at most a few thousand numbers."""
        (bins,) = self._counts.nonzero()
        return {
            "places": bins.tolist(),
            "counts": self._counts[bins].tolist(),
            "range": [self._sum, self._min, self._max],
        }

    def merge(self, counted: Mapping[str, Any]) -> None:
        """Adds the counts of another. Args: counted: its `plain`."""
        self._counts[counted["places"]] += counted["counts"]
        self._note(*counted["range"])

    def columns(self) -> dict[str, float]:
        """Returns a row's columns: mean, minimum, quantiles and maximum; {} if none was counted."""
        upto = self._counts.cumsum()
        count = int(upto[-1])
        if not count:
            return {}
        at = np.array(list(_QUANTILES.values())) / 100 * (count - 1)  # in the sorted lags
        below, above = (
            np.clip(_lags_at(np.searchsorted(upto, i, side="right")), self._min, self._max)
            for i in (np.floor(at), np.ceil(at))
        )
        quantiles = below + (above - below) * (at - np.floor(at))
        return {
            "policy_lag_mean": self._sum / count,
            "policy_lag_min": float(self._min),
            **{f"policy_lag_{name}": float(q) for name, q in zip(_QUANTILES, quantiles)},
            "policy_lag_max": float(self._max),
        }


def _lags_at(bins: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Returns the middles of the lags that are counted in these bins."""
    shift = np.maximum(bins // _HALF - 1, 0)
    return ((bins - shift * _HALF) << shift) + ((1 << shift) - 1) / 2
