"""The settings of a table in shared memory, which may change while it is used.

There is room for two: the one in force, and the next. A count of changes, which is stored at once,
says which is which; so a process that dies while it writes has changed nothing.
"""

import dataclasses
import json

import numpy as np

from distrl.replay.config import RateLimits, ReplayConfig

_BYTES = 2048
SETTINGS_BYTES = 2 * _BYTES


class SharedSettings:
    """Both copies; nothing here locks."""

    def __init__(self, memory: np.ndarray):
        """Args:
        memory: uint8 `[SETTINGS_BYTES]`.
        """
        self._copies = memory[:_BYTES], memory[_BYTES:]

    def write(self, number: int, config: ReplayConfig, limits: RateLimits | None) -> None:
        """Writes the settings after change `number`; not in force until the count says so."""
        settings = {"config": dataclasses.asdict(config), "limits": limits}
        text = json.dumps(settings).encode().ljust(_BYTES)
        assert len(text) == _BYTES
        self._copies[number % 2][:] = np.frombuffer(text, np.uint8)

    def read(self, number: int) -> tuple[ReplayConfig, RateLimits | None]:
        """The settings after change `number`, the last one; limits are None for a queue."""
        settings = json.loads(bytes(self._copies[number % 2]))
        limits = settings["limits"]
        return ReplayConfig(**settings["config"]), limits and RateLimits(*limits)
