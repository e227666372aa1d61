"""Cuts the steps of streams into unrolls.

Window k of a stream has its steps kT to (k + 1)T: T + 1 rows, the last of which is also the
first of the next. It runs across the ends of episodes; a new life of the stream drops what is
unfinished.
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

    def __init__(self, struct: Trajectory, unroll_length: int):
        """Args:
        struct: of one stream at one step, from `distrl.specs.trajectory_struct`.
        unroll_length: T, 1 or more.
        """
        self.columns = Columns(struct, unroll_length)
        self._struct = struct
        self._last = unroll_length
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
            return self._streams.any_begins(stream_ids, life, self._last)
        if self._key is None:
            return True
        if life is not None and life != self._life:
            return True
        if self._row == 0 or self._row == self._last:
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
        row, block = self._row, self._block
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
                block.columns[i][0] = finished.columns[i][row]
            self._block = block
            self._row = 1
            if self._has_state:
                self._set_states(inference, stream_ids, block.columns[self._state], ...)
            return finished
        if row == 0 and self._has_state:
            self._set_states(inference, stream_ids, block.columns[self._state], ...)
        self._row = row + 1
        return None

    def _begin(self, stream_ids: np.ndarray, life: int) -> None:
        check(stream_ids, self._struct.stream_id, (len(stream_ids),), "stream_ids")
        self._know_size(len(stream_ids))
        self._key = stream_ids.tobytes()
        self._ids = stream_ids.copy()
        self._life = life
        self._row = 0
        self._block = self._fresh(stream_ids, life)

    def _fresh(self, stream_ids: np.ndarray, life: int) -> Block:
        block = self.columns.allocate(len(stream_ids))
        block.columns[self._id][...] = stream_ids
        block.columns[self._life_column][...] = life
        return block

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
                self._ids, self._block.columns, self._row, self._life
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
        places = streams.find(stream_ids, self.columns)
        rows = streams.begin_life(places, life)
        columns = streams.columns
        for column, value in zip(columns, values):
            column[rows, places] = value
        columns[self._version][rows, places] = inference.version
        done = rows == self._last
        block = None
        if done.any():
            block = self._gather(columns, places[done], stream_ids[done], life)
            streams.rows[places] = np.where(done, 1, rows + 1)
        else:
            streams.rows[places] = rows + 1
        if self._has_state:
            begins = done | (rows == 0)
            if begins.any():
                self._set_states(
                    inference, stream_ids, columns[self._state], places[begins], begins
                )
        return block

    def _gather(
        self, columns: list[np.ndarray], places: np.ndarray, ids: np.ndarray, life: int
    ) -> Block:
        """The finished windows; their last rows begin the next ones."""
        block = self._fresh(ids, life)
        for i, (source, time) in enumerate(zip(columns, self.columns.has_time)):
            if i < self._id:
                # Places are known to lie inside; "raise" would gather into a copy first.
                axis = 1 if time else 0
                np.take(source, places, axis=axis, out=block.columns[i], mode="clip")
            if time:
                source[0, places] = source[self._last, places]
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
    """Columns in which each stream has its own place (along axis 1) and its own next row."""

    def __init__(self, ids: np.ndarray, columns: list[np.ndarray], row: int, life: int):
        self.columns = columns
        self.rows = np.full(len(ids), row)
        self._lives = np.full(len(ids), life)
        self._index = StreamIndex(ids)

    def find(self, ids: np.ndarray, columns: Columns) -> np.ndarray:
        """The place of each of `ids`; makes room for those that are new."""
        places, known = self._index.find(ids)
        if known.all():
            return places
        count, more = len(self._index), int((~known).sum())
        if count + more > len(self.rows):
            self._grow(max(2 * count, count + more), columns)
        self.rows[count : count + more] = 0
        self._index.add(ids[~known])
        return self._index.find(ids)[0]

    def _grow(self, capacity: int, columns: Columns) -> None:
        count = len(self._index)
        room = columns.allocate(capacity).columns
        for new, old, time in zip(room, self.columns, columns.has_time):
            if time:
                new[:, :count] = old[:, :count]
            else:
                new[:count] = old[:count]
        self.columns = room
        self.rows = np.concatenate([self.rows[:count], np.zeros(capacity - count, int)])
        self._lives = np.concatenate([self._lives[:count], np.zeros(capacity - count, int)])

    def begin_life(self, places: np.ndarray, life: int) -> np.ndarray:
        """The next row of each place: 0 for a stream in another life than before."""
        rows = self.rows[places]
        rows[self._lives[places] != life] = 0
        self._lives[places] = life
        return rows

    def any_begins(self, ids: np.ndarray, life: int | None, last: int) -> bool:
        """True where one of `ids` is unknown, begins a window, or is in another life."""
        places, known = self._index.find(ids)
        if not known.all():
            return True
        rows = self.rows[places]
        if ((rows == 0) | (rows == last)).any():
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
