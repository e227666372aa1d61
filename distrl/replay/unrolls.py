"""Cuts the steps of streams into unrolls.

Window k of a stream has its steps kP to kP + T: T + 1 rows. With a period P of T its last row is
also the first of the next window, with a shorter period its last T + 1 - P rows are. Windows extend
across the ends of episodes; a new life of the stream drops its unfinished windows.
"""

from operator import attrgetter
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from distrl.errors import SpecError
from distrl.replay.columns import Block, Columns
from distrl.replay.step_rows import StepRows, are_small
from distrl.replay.step_values import flattener, step_values
from distrl.replay.stream_columns import StreamColumns
from distrl.specs import check
from distrl.types import Inference, TimeStep, Trajectory

_SHAPE_AND_DTYPE = attrgetter("shape", "dtype")


class Unroller:
    """Collects the steps of streams in columns, and returns the unrolls that are finished.

    While every call has the same streams, they are in lockstep: a step is one row of each column,
    and a finished block is returned without a copy; small steps are written as `StepRows`, of which
    a finished block is a copy. From the first call with other streams on, each stream has its own
    slot and next row, and finished unrolls are gathered into a block.
    """

    def __init__(self, struct: Trajectory, unroll_length: int, period: int | None = None):
        """Args:
        struct: one stream at one step, from `distrl.specs.trajectory_struct`.
        unroll_length: T, 1 or more.
        period: P, from 1 to T; None: T.
        """
        self.columns = Columns(struct, unroll_length)
        self._struct = struct
        self._last = unroll_length
        self._period = unroll_length if period is None else period
        # The rows of a finished window with which the next window begins, and their rows there.
        self._overlap: int | slice = unroll_length
        self._start: int | slice = 0
        if self._period < unroll_length:
            self._overlap = slice(self._period, None)
            self._start = slice(unroll_length + 1 - self._period)
        self._values = step_values(struct)
        self._state_values = flattener(struct.state)
        times = sum(self.columns.has_time)
        states = len(jax.tree.leaves(struct.state))
        self._has_state = states > 0
        # Trajectory's fields: steps (the version comes last), state, stream_id, life.
        self._version = times - 1
        self._state = slice(times, times + states)
        self._id = times + states
        self._life_column = times + states + 1
        self._specs: dict[int, list[tuple[tuple[int, ...], np.dtype[Any]]]] = {}
        # In lockstep:
        self._key: bytes | None = None  # the ids, which were the same in every call so far
        self._ids = np.zeros(0, np.int32)
        self._block = Block([], 0)
        self._rows: StepRows | None = None  # the block's, if its steps are small
        self._row = 0
        self._life = 0
        self._pending: list[list[npt.NDArray[Any]]] = []
        # With a slot for each stream:
        self._streams: StreamColumns | None = None

    def needs_state(self, stream_ids: npt.NDArray[np.int32], life: int | None = None) -> bool:
        """Returns whether the next step of any stream begins a window, for an agent with state.

        Args:
          stream_ids: int32 `[B]`.
          life: the life that the step will have; None: same as before.
        """
        if not self._has_state:
            return False
        if self._streams is not None:
            return self._streams.any_begins(stream_ids, life, self._period)
        if self._key is None:
            return True
        if life is not None and life != self._life:
            return True
        if self._row % self._period == 0:
            return True
        return stream_ids.tobytes() != self._key and not np.isin(stream_ids, self._ids).all()

    def add(
        self,
        stream_ids: npt.NDArray[np.int32],
        timestep: TimeStep,
        inference: Inference,
        life: int = 0,
    ) -> Trajectory | None:
        """Takes a step of some streams; returns the unrolls that it finishes, or None.

        Arguments as for `distrl.replay.buffer.ReplayWriter.add`.

        Returns:
          `[T + 1, k, ...]` for the k streams whose windows are finished, `probability` all 1.

        Raises:
          SpecError: a value breaks its spec, or a state is missing.
        """
        block = self.cut(stream_ids, timestep, inference, life)
        if block is None:
            return None
        return self.columns.trajectory(block, np.ones(block.size, np.float32))

    def cut(
        self,
        stream_ids: npt.NDArray[np.int32],
        timestep: TimeStep,
        inference: Inference,
        life: int = 0,
    ) -> Block | None:
        """As `add`, but returns a block."""
        if self._streams is not None or stream_ids.tobytes() != self._key:
            if self._key is None:
                self._begin(stream_ids, life)
            else:
                return self._cut_apart(stream_ids, timestep, inference, life)
        elif life != self._life:
            self._row = 0
            self._life = life
            self._block.columns[self._life_column][...] = life
        row, block, rows, finished = self._row, self._block, self._rows, None
        values = self._checked_values(stream_ids, timestep, inference)
        if rows is not None:
            rows.write(row, values, inference.version)
        else:
            for column, value in zip(block.columns, values):
                column[row] = value
            block.columns[self._version][row] = inference.version
        if row == self._last:
            if rows is not None:
                finished = rows.copy(self.columns)
                rows.move(self._period)
            else:
                finished, block = block, self._fresh(stream_ids, life)
                for i in range(self._version + 1):
                    block.columns[i][self._start] = finished.columns[i][self._overlap]
                self._block = block
            self._row = row = row - self._period
            if self._pending:
                for column, value in zip(block.columns[self._state], self._pending[0]):
                    column[...] = value
                self._pending.append(self._pending.pop(0))
        if row % self._period == 0 and self._has_state:
            begun = row // self._period
            columns = self._pending[begun - 1] if begun else block.columns[self._state]
            self._set_states(inference, stream_ids, columns, ...)
        self._row = row + 1
        return finished

    def begin_again(self) -> None:
        """Takes back the step that finished unrolls of all streams, and began their next ones.

        The next call has this step again, with another inference.
        """
        assert self._streams is None, "streams in lockstep"
        assert self._row == self._last - self._period + 1, "a step that finished unrolls"
        self._row -= 1

    def _begin(self, stream_ids: npt.NDArray[np.int32], life: int) -> None:
        check(stream_ids, self._struct.stream_id, (len(stream_ids),), "stream_ids")
        self._prepare_specs(len(stream_ids))
        self._key = stream_ids.tobytes()
        self._ids = stream_ids.copy()
        self._life = life
        self._row = 0
        self._rows = None
        if are_small(self.columns, len(stream_ids)):
            self._rows = StepRows(self.columns, len(stream_ids))
            self._block = self._label(self._rows.block, stream_ids, life)
        else:
            self._block = self._fresh(stream_ids, life)
        self._pending = self._make_pending(len(stream_ids))

    def _fresh(self, stream_ids: npt.NDArray[np.int32], life: int) -> Block:
        return self._label(self.columns.allocate(len(stream_ids)), stream_ids, life)

    def _label(self, block: Block, stream_ids: npt.NDArray[np.int32], life: int) -> Block:
        block.columns[self._id][...] = stream_ids
        block.columns[self._life_column][...] = life
        return block

    def _separate_columns(self) -> list[npt.NDArray[Any]]:
        """Returns the columns of the streams in lockstep, each in memory of its own."""
        block = self._block if self._rows is None else self._rows.copy(self.columns)
        return block.columns

    def _make_pending(self, size: int) -> list[list[npt.NDArray[Any]]]:
        """Allocates the states of windows that begin inside another one, at its rows P, 2P, ..."""
        leaves = self.columns.leaves[self._state]
        return [
            [np.empty((size, *leaf.shape), leaf.dtype) for leaf in leaves]
            for _ in range((self._last - 1) // self._period if self._has_state else 0)
        ]

    def _prepare_specs(self, size: int) -> None:
        """Prepares the checks of calls with `size` streams."""
        if size not in self._specs:
            self._specs[size] = [
                ((size, *leaf.shape), np.dtype(leaf.dtype))
                for leaf in self.columns.leaves[: self._version]
            ]

    def _cut_apart(
        self, stream_ids: npt.NDArray[np.int32], timestep: TimeStep, inference: Inference, life: int
    ) -> Block | None:
        """As `cut`, with a slot for each stream."""
        streams = self._streams
        if streams is None:
            streams = self._streams = StreamColumns(
                self._ids, self._separate_columns(), self._pending, self._row, self._life
            )
        values = self._checked_values(stream_ids, timestep, inference)
        slots = streams.find(stream_ids, self.columns, self._make_pending)
        rows = streams.begin_life(slots, life)
        columns = streams.columns
        for column, value in zip(columns, values):
            column[rows, slots] = value
        columns[self._version][rows, slots] = inference.version
        done = rows == self._last
        block = None
        if done.any():
            block = self._gather(streams, slots[done], stream_ids[done], life)
            rows = np.where(done, rows - self._period, rows)
        streams.rows[slots] = rows + 1
        if self._has_state:
            for number, states in enumerate([columns[self._state], *streams.pending]):
                begins = rows == number * self._period
                if begins.any():
                    self._set_states(inference, stream_ids, states, slots[begins], begins)
        return block

    def _checked_values(
        self, stream_ids: npt.NDArray[np.int32], timestep: TimeStep, inference: Inference
    ) -> list[npt.NDArray[Any]]:
        """Returns a step's values by column. Raises SpecError if one breaks its spec."""
        size = len(stream_ids)
        if size not in self._specs:
            check(stream_ids, self._struct.stream_id, (size,), "stream_ids")
            self._prepare_specs(size)
        try:
            values = self._values(timestep, inference)
            if list(map(_SHAPE_AND_DTYPE, values)) != self._specs[size]:
                raise TypeError
        except (TypeError, AttributeError, LookupError):
            self._refuse(stream_ids, timestep, inference)
            raise
        return values

    def _gather(
        self, streams: StreamColumns, slots: npt.NDArray[Any], ids: npt.NDArray[np.int32], life: int
    ) -> Block:
        """Returns the finished windows, and begins the next ones with their last rows."""
        block = self._fresh(ids, life)
        for i, (source, time) in enumerate(zip(streams.columns, self.columns.has_time)):
            if i < self._id:
                # The slots are in range; mode="raise" would gather into a copy first.
                axis = 1 if time else 0
                np.take(source, slots, axis=axis, out=block.columns[i], mode="clip")
            if time:
                source[self._start, slots] = source[self._overlap, slots]
        states = streams.columns[self._state]
        for later in streams.pending:
            for old, new in zip(states, later):
                old[slots] = new[slots]
            states = later
        return block

    def _set_states(
        self,
        inference: Inference,
        stream_ids: npt.NDArray[np.int32],
        columns: list[npt.NDArray[Any]],
        slots: Any,
        rows: Any = ...,
    ) -> None:
        """Stores the states before this step for the streams whose windows begin with it."""
        size = len(stream_ids)
        if inference.state is None:
            raise SpecError(
                f"state: an unroll begins with this step of streams {stream_ids[rows].tolist()}, "
                "and the inference has no state; ask needs_state(stream_ids, life) before it"
            )
        check(inference.state, self._struct.state, (size,), "state")
        for column, value in zip(columns, self._state_values(inference.state)):
            column[slots] = value[rows]

    def _refuse(
        self, stream_ids: npt.NDArray[np.int32], timestep: TimeStep, inference: Inference
    ) -> None:
        """Raises SpecError naming the value that breaks its spec."""
        leading = (len(stream_ids),)
        for field in ("step_type", "reward", "discount", "observation", "prev_action"):
            spec = getattr(self._struct.timestep, field)
            check(getattr(timestep, field), spec, leading, f"timestep.{field}")
        check(inference.action, self._struct.action, leading, "action")
        check(inference.extras, self._struct.extras, leading, "extras")
