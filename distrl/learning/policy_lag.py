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
        self._lags: list[npt.NDArray[Any]] = []

    def add(self, version: int, trajectory: Trajectory, real: npt.NDArray[np.bool_]) -> None:
        """Adds the steps that an update consumes.

        Args:
          version: the learner's version.
          trajectory: the batch `[T + 1, B]`; its last step is only bootstrapped from.
          real: bool `[T, B]`, which rows are steps: not those from an episode's end on.
        """
        # Negative if the version was lost with an earlier life of the learner.
        self._lags.append(np.maximum(lags(version, trajectory.version[:-1])[real], 0))

    def take(self) -> Report:
        """Returns the counts since the last call, for the monitor to add up; {} if none."""
        consumed, self._lags = [lag for lag in self._lags if lag.size], []
        if not consumed:
            return {}
        counts = LagCounts()
        counts.add(np.concatenate(consumed))
        return {REPORTED: counts.plain()}
