"""Policy lag: how many learner steps older data is than the parameters that learn from it."""

from typing import Any

import numpy as np
import numpy.typing as npt

from distrl.metrics.lag_counts import REPORTED, LagCounts
from distrl.metrics.reports import Report
from distrl.param_versions import lags
from distrl.types import Trajectory


class PolicyLags:
    """Collects the lags of consumed steps, and reports how many there were of each."""

    def __init__(self) -> None:
        self._consumed: list[tuple[int, npt.NDArray[Any], npt.NDArray[np.bool_]]] = []

    def add(self, version: int, trajectory: Trajectory, real: npt.NDArray[np.bool_]) -> None:
        """Adds the steps that an update consumes.

        Args:
          version: the learner's version.
          trajectory: the batch `[T + 1, B]`; its last step is only bootstrapped from.
          real: bool `[T, B]`, which rows are steps: not those from an episode's end on.
        """
        # Copied, as the batch's memory may be used again; counted later, all together.
        self._consumed.append((version, trajectory.version[:-1].copy(), real))

    def take(self) -> Report:
        """Returns the counts since the last call, for the monitor to add up; {} if none."""
        consumed, self._consumed = self._consumed, []
        # Negative if the version was lost with an earlier life of the learner.
        lagging = [np.maximum(lags(version, made)[real], 0) for version, made, real in consumed]
        if not any(lag.size for lag in lagging):
            return {}
        counts = LagCounts()
        counts.add(np.concatenate(lagging))
        return {REPORTED: counts.plain()}
