"""The settings of a table in shared memory, which may change while it is in use.

There are two copies: the one in force and the next. A count of changes, which is written
atomically, selects between them; so a process that dies while writing has changed nothing.
"""

import dataclasses
import json
from typing import Any

import numpy as np
import numpy.typing as npt

from distrl.replay.config import RateLimits, ReplayConfig

_BYTES = 2048
SETTINGS_BYTES = 2 * _BYTES


class SharedSettings:
    """Both copies; the caller holds the table's lock."""

    def __init__(self, memory: npt.NDArray[Any]):
        """Args:
        memory: uint8 `[SETTINGS_BYTES]`.
        """
        self._copies = memory[:_BYTES], memory[_BYTES:]

    def write(self, number: int, config: ReplayConfig, limits: RateLimits | None) -> None:
        """Writes the settings of change `number`; in force when the count has that number."""
        settings = {"config": dataclasses.asdict(config), "limits": limits}
        text = json.dumps(settings).encode().ljust(_BYTES)
        assert len(text) == _BYTES
        self._copies[number % 2][:] = np.frombuffer(text, np.uint8)

    def read(self, number: int) -> tuple[ReplayConfig, RateLimits | None]:
        """Returns the settings of change `number`, the last one; limits are None for a queue."""
        settings = json.loads(bytes(self._copies[number % 2]))
        limits = settings["limits"]
        return ReplayConfig(**settings["config"]), limits and RateLimits(*limits)
