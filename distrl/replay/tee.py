"""One stream of experience for the tables of several tasks."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from distrl.replay.buffer import ReplayWriter
from distrl.types import Inference, TimeStep


class Tee(ReplayWriter):
    """Writes the steps of a policy's streams to its table, and to those that learn from it.

    Each writer cuts unrolls of its own length.
    """

    def __init__(self, writer: ReplayWriter | None, others: Sequence[tuple[ReplayWriter, bool]]):
        """Args:
        writer: the acting policy's writer; None: it does not learn.
        others: the writers of the other tasks, which have no recurrent state, each with whether it
          stores the acting policy's extras.
        """
        self._writer = writer
        self._others = list(others)

    def needs_state(self, stream_ids: npt.NDArray[np.int32], life: int | None = None) -> bool:
        return self._writer is not None and self._writer.needs_state(stream_ids, life)

    def add(
        self,
        stream_ids: npt.NDArray[np.int32],
        timestep: TimeStep,
        inference: Inference,
        life: int = 0,
    ) -> None:
        if self._writer is not None:
            self._writer.add(stream_ids, timestep, inference, life)
        for writer, with_extras in self._others:
            extras = inference.extras if with_extras else ()
            writer.add(stream_ids, timestep, inference._replace(extras=extras, state=None), life)

    def release(self) -> bool:
        return any(writer.release() for writer in self._writers())

    def flush(self) -> None:
        for writer in self._writers():
            writer.flush()

    def _writers(self) -> list[ReplayWriter]:
        first = [] if self._writer is None else [self._writer]
        return [*first, *(writer for writer, _ in self._others)]
