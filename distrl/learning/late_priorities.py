"""Sends the priorities that a learner computes to its replay, one update late."""

import jax
import numpy as np
import numpy.typing as npt

from distrl.learner_group.devices import Devices
from distrl.replay.buffer import ReplayReader
from distrl.runtime.time_account import COMPUTE, in_state


class LatePriorities:
    """Sends each update's priorities with the next one, as they may still be being computed."""

    def __init__(self, replay: ReplayReader, devices: Devices):
        """Args: replay: takes the priorities. devices: compute them."""
        self._replay, self._devices = replay, devices
        self._unsent: tuple[npt.NDArray[np.uint64], jax.Array] | None = None
        self._wanted: bool | None = None

    @property
    def wanted(self) -> bool:
        """Whether the replay is prioritized, as of the last update."""
        if self._wanted is None:
            self._wanted = self._replay.is_prioritized
        return self._wanted

    def update(self, keys: npt.NDArray[np.uint64], priorities: jax.Array | None) -> None:
        """Sends those of the update before, and keeps these. Args: None: there are none."""
        self._wanted = self._replay.is_prioritized  # a server is asked while a device computes
        if priorities is None or not self._wanted:
            return
        earlier, self._unsent = self._unsent, (keys, priorities)
        if earlier is not None:
            with in_state(COMPUTE):
                rows = self._devices.local_rows(earlier[1])
                if np.isfinite(rows).all():  # else that update was skipped, or ends training
                    self._replay.update_priorities(earlier[0], rows)
