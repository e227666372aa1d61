"""Policy lag: how many learner steps older data is than the parameters that learn from it."""

from typing import Any

import numpy as np
import numpy.typing as npt

from distrl.metrics.reports import Report
from distrl.param_versions import lags
from distrl.types import Trajectory

_QUANTILES = {"p5": 5, "p25": 25, "p50": 50, "p75": 75, "p95": 95}


class PolicyLags:
    """Collects the lags of consumed steps, and reports how they are distributed."""

    def __init__(self) -> None:
        self._lags: list[npt.NDArray[Any]] = []

    def add(self, version: int, trajectory: Trajectory) -> None:
        """Notes the steps that an update consumes.

        Args:
          version: of the learner.
          trajectory: the batch `[T + 1, B]`; its last step is only bootstrapped from.
        """
        # Negative if the version was lost with an earlier life of the learner.
        self._lags.append(np.maximum(lags(version, trajectory.version[:-1]), 0))

    def take(self) -> Report:
        """Returns mean, minimum, quantiles and maximum since the last call; {} if none came."""
        if not self._lags:
            return {}
        taken = np.concatenate([lag.ravel() for lag in self._lags])
        self._lags = []
        quantiles = np.percentile(taken, list(_QUANTILES.values()))
        return {
            "policy_lag_mean": float(taken.mean()),
            "policy_lag_min": float(taken.min()),
            **{f"policy_lag_{name}": float(q) for name, q in zip(_QUANTILES, quantiles)},
            "policy_lag_max": float(taken.max()),
        }
