"""Cuts the steps of streams into unrolls.

Window k of a stream has its steps kP to kP + T: T + 1 rows. With a period P of T the last of them
is also the first of the next window, and with a shorter one the last T + 1 - P are. Windows run
across the ends of episodes; a new life of the stream drops what is unfinished.
"""

from collections.abc import Callable
from operator import itemgetter
from typing import Any

import jax
import numpy as np

from distrl.errors import SpecError
from distrl.replay.columns import Block, Columns
from distrl.replay.stream_index import StreamIndex
from distrl.specs import check, is_spec
from distrl.types import Inference, Nest, TimeStep, Trajectory


class Unroller:
    """Collects steps in columns, one for each stream, and hands out the unrolls that are done.

    While every call has the same streams they are in lockstep: a step is one row of each column,
    and a finished block is handed out as it is. From the first call that differs each stream has
    its own place, and blocks are gathered.
    """

    def __init__(self, struct: Trajectory, unroll_length: int, period: int | None = None):
        """Args:
        struct: of one stream at one step, from `distrl.specs.trajectory_struct`.
        unroll_length: T, 1 or more.
        period: P, from 1 to T; None: T.
        """
        self.columns = Columns(struct, unroll_length)
        self._struct = struct
        self._last = unroll_length
        self._period = unroll_length if period is None else period
        # Which rows of a finished window the next one begins with, and where they lie in it.
        self._again: int | slice = unroll_length
        self._start: int | slice = 0
        if self._period < unroll_length:
            self._again = slice(self._period, None)
            self._start = slice(unroll_length + 1 - self._period)
        self._values = _values_of(struct)
        self._state_values = _flattener(struct.state)
        times = sum(self.columns.has_time)
        states = len(jax.tree.leaves(struct.state))
        self._has_state = states > 0
        # Trajectory's fields: steps (the version comes last), state, stream_id, life.
        self._version = times - 1
        self._state = slice(times, times + states)
        self._id = times + states
        self._life_column = times + states + 1
        self._specs: dict[int, list[tuple[tuple[int, ...], np.dtype]]] = {}
        # In lockstep:
        self._key: bytes | None = None  # the ids of every call until now
        self._ids = np.zeros(0, np.int32)
        self._block = Block([], 0)
        self._row = 0
        self._life = 0
        self._pending: list[list[np.ndarray]] = []
        # Where each stream has its own place:
        self._streams: _Streams | None = None

    def needs_state(self, stream_ids: np.ndarray, life: int | None = None) -> bool:
        """True where the next step of one of `stream_ids` begins a window, and there is a state.

        Args:
          stream_ids: int32 `[B]`.
          life: that the step will come with; None: the one before.
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
        self, stream_ids: np.ndarray, timestep: TimeStep, inference: Inference, life: int = 0
    ) -> Trajectory | None:
        """Takes a step of some streams; gives the unrolls that it finishes, or None.

        Args: as `distrl.replay.buffer.ReplayBuffer.add`.

        Returns:
          `[T + 1, k, ...]` of the k streams whose windows are done, `probability` all 1.

        Raises:
          SpecError: a value breaks its spec, or a state is missing.
        """
        block = self.cut(stream_ids, timestep, inference, life)
        if block is None:
            return None
        return self.columns.trajectory(block, np.ones(block.size, np.float32))

    def cut(
        self, stream_ids: np.ndarray, timestep: TimeStep, inference: Inference, life: int = 0
    ) -> Block | None:
        """As `add`, but gives the columns as they lie."""
        if self._streams is not None or stream_ids.tobytes() != self._key:
            if self._key is None:
                self._begin(stream_ids, life)
            else:
                return self._cut_apart(stream_ids, timestep, inference, life)
        elif life != self._life:
            self._row = 0
            self._life = life
            self._block.columns[self._life_column][...] = life
        row, block, finished = self._row, self._block, None
        try:
            values = self._values(timestep, inference)
            for column, value, (shape, dtype) in zip(
                block.columns, values, self._specs[len(stream_ids)]
            ):
                if value.shape != shape or value.dtype != dtype:
                    raise TypeError
                column[row] = value
        except (TypeError, AttributeError, LookupError):
            self._refuse(stream_ids, timestep, inference)
            raise
        block.columns[self._version][row] = inference.version
        if row == self._last:
            finished, block = block, self._fresh(stream_ids, life)
            for i in range(self._version + 1):
                block.columns[i][self._start] = finished.columns[i][self._again]
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

    def _begin(self, stream_ids: np.ndarray, life: int) -> None:
        check(stream_ids, self._struct.stream_id, (len(stream_ids),), "stream_ids")
        self._know_size(len(stream_ids))
        self._key = stream_ids.tobytes()
        self._ids = stream_ids.copy()
        self._life = life
        self._row = 0
        self._block = self._fresh(stream_ids, life)
        self._pending = self._make_pending(len(stream_ids))

    def _fresh(self, stream_ids: np.ndarray, life: int) -> Block:
        block = self.columns.allocate(len(stream_ids))
        block.columns[self._id][...] = stream_ids
        block.columns[self._life_column][...] = life
        return block

    def _make_pending(self, size: int) -> list[list[np.ndarray]]:
        """Room for the states of windows that begin inside of another, at its rows P, 2P, ..."""
        leaves = self.columns.leaves[self._state]
        return [
            [np.empty((size, *leaf.shape), leaf.dtype) for leaf in leaves]
            for _ in range((self._last - 1) // self._period if self._has_state else 0)
        ]

    def _know_size(self, size: int) -> None:
        """Prepares the check of calls with `size` streams."""
        if size not in self._specs:
            self._specs[size] = [
                ((size, *leaf.shape), np.dtype(leaf.dtype))
                for leaf in self.columns.leaves[: self._version]
            ]

    def _cut_apart(
        self, stream_ids: np.ndarray, timestep: TimeStep, inference: Inference, life: int
    ) -> Block | None:
        """`cut` where each stream has its own place."""
        streams = self._streams
        if streams is None:
            streams = self._streams = _Streams(
                self._ids, self._block.columns, self._pending, self._row, self._life
            )
        size = len(stream_ids)
        if size not in self._specs:
            check(stream_ids, self._struct.stream_id, (size,), "stream_ids")
            self._know_size(size)
        try:
            values = self._values(timestep, inference)
            for value, (shape, dtype) in zip(values, self._specs[size]):
                if value.shape != shape or value.dtype != dtype:
                    raise TypeError
        except (TypeError, AttributeError, LookupError):
            self._refuse(stream_ids, timestep, inference)
            raise
        places = streams.find(stream_ids, self.columns, self._make_pending)
        rows = streams.begin_life(places, life)
        columns = streams.columns
        for column, value in zip(columns, values):
            column[rows, places] = value
        columns[self._version][rows, places] = inference.version
        done = rows == self._last
        block = None
        if done.any():
            block = self._gather(streams, places[done], stream_ids[done], life)
            rows = np.where(done, rows - self._period, rows)
        streams.rows[places] = rows + 1
        if self._has_state:
            for number, states in enumerate([columns[self._state], *streams.pending]):
                begins = rows == number * self._period
                if begins.any():
                    self._set_states(inference, stream_ids, states, places[begins], begins)
        return block

    def _gather(self, streams: "_Streams", places: np.ndarray, ids: np.ndarray, life: int) -> Block:
        """The finished windows; their last rows begin the next ones."""
        block = self._fresh(ids, life)
        for i, (source, time) in enumerate(zip(streams.columns, self.columns.has_time)):
            if i < self._id:
                # Places are known to lie inside; "raise" would gather into a copy first.
                axis = 1 if time else 0
                np.take(source, places, axis=axis, out=block.columns[i], mode="clip")
            if time:
                source[self._start, places] = source[self._again, places]
        states = streams.columns[self._state]
        for later in streams.pending:
            for old, new in zip(states, later):
                old[places] = new[places]
            states = later
        return block

    def _set_states(
        self,
        inference: Inference,
        stream_ids: np.ndarray,
        columns: list[np.ndarray],
        places: Any,
        rows: Any = ...,
    ) -> None:
        """Stores the states before this step, of the streams whose windows begin with it."""
        size = len(stream_ids)
        if inference.state is None:
            raise SpecError(
                f"state: an unroll begins with this step of streams {stream_ids[rows].tolist()}, "
                "and the inference has no state; ask needs_state(stream_ids, life) before it"
            )
        check(inference.state, self._struct.state, (size,), "state")
        for column, value in zip(columns, self._state_values(inference.state)):
            column[places] = value[rows]

    def _refuse(self, stream_ids: np.ndarray, timestep: TimeStep, inference: Inference) -> None:
        """Raises SpecError with what breaks its spec."""
        leading = (len(stream_ids),)
        for field in ("step_type", "reward", "discount", "observation", "prev_action"):
            spec = getattr(self._struct.timestep, field)
            check(getattr(timestep, field), spec, leading, f"timestep.{field}")
        check(inference.action, self._struct.action, leading, "action")
        check(inference.extras, self._struct.extras, leading, "extras")


class _Streams:
    """Columns in which each stream has its own place (along axis 1) and its own next row.

    The states in `pending`, of windows to come, have the same places.
    """

    def __init__(
        self,
        ids: np.ndarray,
        columns: list[np.ndarray],
        pending: list[list[np.ndarray]],
        row: int,
        life: int,
    ):
        self.columns = columns
        self.pending = pending
        self.rows = np.full(len(ids), row)
        self._lives = np.full(len(ids), life)
        self._index = StreamIndex(ids)

    def find(
        self,
        ids: np.ndarray,
        columns: Columns,
        make_pending: Callable[[int], list[list[np.ndarray]]],
    ) -> np.ndarray:
        """The place of each of `ids`; makes room for those that are new."""
        places, known = self._index.find(ids)
        if known.all():
            return places
        count, more = len(self._index), int((~known).sum())
        if count + more > len(self.rows):
            capacity = max(2 * count, count + more)
            self._grow(capacity, columns, make_pending(capacity))
        self.rows[count : count + more] = 0
        self._index.add(ids[~known])
        return self._index.find(ids)[0]

    def _grow(self, capacity: int, columns: Columns, pending: list[list[np.ndarray]]) -> None:
        count = len(self._index)
        room = columns.allocate(capacity).columns
        for new, old, time in zip(room, self.columns, columns.has_time):
            if time:
                new[:, :count] = old[:, :count]
            else:
                new[:count] = old[:count]
        for states, old_states in zip(pending, self.pending):
            for new, old in zip(states, old_states):
                new[:count] = old[:count]
        self.columns, self.pending = room, pending
        self.rows = np.concatenate([self.rows[:count], np.zeros(capacity - count, int)])
        self._lives = np.concatenate([self._lives[:count], np.zeros(capacity - count, int)])

    def begin_life(self, places: np.ndarray, life: int) -> np.ndarray:
        """The next row of each place: 0 for a stream in another life than before."""
        rows = self.rows[places]
        rows[self._lives[places] != life] = 0
        self._lives[places] = life
        return rows

    def any_begins(self, ids: np.ndarray, life: int | None, period: int) -> bool:
        """True where one of `ids` is unknown, begins a window, or is in another life."""
        places, known = self._index.find(ids)
        if not known.all():
            return True
        if (self.rows[places] % period == 0).any():
            return True
        return life is not None and bool((self._lives[places] != life).any())


def _flattener(spec: Nest) -> Callable[[Nest], Any]:
    """A function from a nest like `spec` to its leaves in JAX's order.

    It raises TypeError, LookupError or AttributeError (or gives what has no shape of its own) where
    the structure differs.
    """
    if is_spec(spec):
        return lambda nest: (nest,)
    leaves, structure = jax.tree.flatten(spec)
    if isinstance(spec, dict) and spec and all(is_spec(leaf) for leaf in spec.values()):
        keys = sorted(spec)
        count = len(keys)
        get = itemgetter(*keys) if count > 1 else lambda nest: (nest[keys[0]],)

        def from_dict(nest: Nest) -> Any:
            if len(nest) != count:
                raise KeyError
            return get(nest)

        return from_dict

    def from_tree(nest: Nest) -> Any:
        came, came_structure = jax.tree.flatten(nest)
        if came_structure != structure:
            raise TypeError
        return came

    if not leaves and spec == ():
        return lambda nest: nest if len(nest) == 0 else from_tree(nest)
    return from_tree


def _values_of(struct: Trajectory) -> Callable[[TimeStep, Inference], list[np.ndarray]]:
    """A function from a step to its values, in the order of the columns, but for the version."""
    step = struct.timestep
    reward = _flattener(step.reward)
    observation = _flattener(step.observation)
    prev_action = _flattener(step.prev_action)
    action = _flattener(struct.action)
    extras = _flattener(struct.extras)

    def values(timestep: TimeStep, inference: Inference) -> list[np.ndarray]:
        return [
            timestep.step_type,
            *reward(timestep.reward),
            timestep.discount,
            *observation(timestep.observation),
            *prev_action(timestep.prev_action),
            *action(inference.action),
            *extras(inference.extras),
        ]

    return values
