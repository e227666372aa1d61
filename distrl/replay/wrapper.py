"""A replay before another: what it does not do itself, the other does."""

from pathlib import Path
from typing import Any

import numpy as np

from distrl.replay.buffer import ReplayBuffer
from distrl.replay.table.experience import Experience
from distrl.replay.table.info import TableInfo
from distrl.types import Inference, Sample, TimeStep


class ReplayWrapper(ReplayBuffer):
    """Passes every call on; subclasses say what is otherwise."""

    def __init__(self, replay: ReplayBuffer):
        """Args: replay: the one behind."""
        self._replay = replay

    @property
    def is_prioritized(self) -> bool:
        return self._replay.is_prioritized

    def needs_state(self, stream_ids: np.ndarray, life: int | None = None) -> bool:
        return self._replay.needs_state(stream_ids, life)

    def add(
        self, stream_ids: np.ndarray, timestep: TimeStep, inference: Inference, life: int = 0
    ) -> None:
        self._replay.add(stream_ids, timestep, inference, life)

    def flush(self) -> None:
        self._replay.flush()

    def sample(self, timeout: float | None) -> Sample:
        return self._replay.sample(timeout)

    def update_priorities(self, keys: np.ndarray, priorities: np.ndarray) -> None:
        self._replay.update_priorities(keys, priorities)

    def can_sample(self) -> bool:
        return self._replay.can_sample()

    def reconfigure(self, **changes: object) -> TableInfo:
        return self._replay.reconfigure(**changes)

    @property
    def experience(self) -> Experience:
        return self._replay.experience

    def info(self) -> TableInfo:
        return self._replay.info()

    def save(self, folder: Path, timeout: float) -> dict[str, Any]:
        return self._replay.save(folder, timeout)

    def close(self) -> None:
        self._replay.close()
