"""Versions of parameters as trajectories store them: the low 32 bits of the learner's, as int32.

A learner makes more updates than int32 counts within weeks. Lags of up to `LARGEST_LAG` stay right.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

LARGEST_LAG = 2**30
"""The largest lag: stored versions are less than this older or newer than the learner's."""


def stored_version(version: int) -> int:
    """Returns a version as int32, which wraps around: every second 2**31 of them are negative."""
    return ((version + 2**31) & 0xFFFFFFFF) - 2**31


def lags(version: int, stored: Any) -> npt.NDArray[np.int32]:
    """Returns how many versions older the stored ones are; negative if they are newer.

    Args:
      version: the learner's version.
      stored: int32 `[...]`, with at least one axis.
    """
    return np.subtract(np.array(stored_version(version), np.int32), stored, dtype=np.int32)
