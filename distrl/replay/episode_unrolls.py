"""Cuts the steps of streams into whole episodes, an unroll each."""

from typing import Any

import numpy as np
import numpy.typing as npt

from distrl.errors import SpecError
from distrl.replay.columns import Block
from distrl.replay.stream_columns import StreamColumns
from distrl.replay.unrolls import Unroller
from distrl.types import Inference, StepType, TimeStep, Trajectory


class EpisodeUnroller(Unroller):
    """Returns an unroll for each episode, from FIRST to LAST, as soon as it has ended.

    The rows after LAST repeat it: from LAST to LAST is no transition. An episode of which a part is
    missing, because a life of its stream began within it, is dropped.
    """

    def __init__(self, struct: Trajectory, unroll_length: int):
        """Args:
        struct: one stream at one step, from `distrl.specs.trajectory_struct`.
        unroll_length: T, the most transitions of an episode.
        """
        super().__init__(struct, unroll_length)

    def cut(
        self,
        stream_ids: npt.NDArray[np.int32],
        timestep: TimeStep,
        inference: Inference,
        life: int = 0,
    ) -> Block | None:
        """See `Unroller.cut`.

        Raises:
          SpecError: a value breaks its spec, a state is missing, or an episode is too long.
        """
        if self._streams is None:
            self._begin(stream_ids, life)
            columns, pending = self._separate_columns(), self._pending
            self._streams = StreamColumns(self._ids, columns, pending, 0, life)
        streams = self._streams
        values = self._checked_values(stream_ids, timestep, inference)
        slots = streams.find(stream_ids, self.columns, self._make_pending)
        rows = streams.begin_life(slots, life)
        first = timestep.step_type == StepType.FIRST
        rows[first] = 0
        kept = np.flatnonzero(first | (rows > 0))
        ended = timestep.step_type == StepType.LAST
        if (rows[~ended] == self._last).any():
            stream = int(stream_ids[~ended][rows[~ended] == self._last][0])
            raise SpecError(
                f"stream {stream} is in an episode of more than replay.unroll_length={self._last} "
                "transitions, and replay.whole_episodes needs all of it in one unroll: raise "
                "replay.unroll_length, or limit the episodes (max_episode_steps)"
            )
        columns, row, slot = streams.columns, rows[kept], slots[kept]
        for column, value in zip(columns, values):
            column[row, slot] = value[kept]
        versions = np.broadcast_to(inference.version, len(slots))  # one, or one for each stream
        columns[self._version][row, slot] = versions[kept]
        done = ended & (rows > 0)
        finished = None
        if done.any():
            for end, stream_slot in zip(rows[done].tolist(), slots[done].tolist()):
                for column in columns[: self._version + 1]:
                    column[end + 1 :, stream_slot] = column[end, stream_slot]
            finished = self._gather(streams, slots[done], stream_ids[done], life)
        after = np.zeros(len(slots), rows.dtype)
        after[kept] = row + 1
        after[done] = 0
        streams.rows[slots] = after
        if self._has_state and first.any():
            states: list[Any] = columns[self._state]
            self._set_states(inference, stream_ids, states, slots[first], first)
        return finished
