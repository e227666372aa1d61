"""Inference: (stream ids, time step) -> action, with recurrent state kept by stream."""

from collections.abc import Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from distrl import specs
from distrl.agents.agent import Agent
from distrl.inference.messages import InferenceMessages
from distrl.lockstep import LockstepVariables
from distrl.types import Inference, Nest, State, StepType, TimeStep
from distrl.variables import VariableClient


class InferenceSource(Protocol):
    """What an actor asks for actions: an `Inferencer` here, or a service elsewhere."""

    def inference(
        self, stream_ids: np.ndarray, timestep: TimeStep, life: int = 0, with_state: bool = False
    ) -> Inference:
        """See `Inferencer.inference`."""


class Inferencer:
    """Runs an agent's `actor_step` on the newest parameters it has.

    The agent's state lives in a table with a row a stream, and is the initial one at FIRST and in
    a stream's new life. One object serves one thread; `InferenceServer` shares one among many.
    """

    def __init__(
        self,
        agent: Agent,
        variables: VariableClient | LockstepVariables,
        *,
        seed: int,
        max_streams: int,
        batch_sizes: Sequence[int] = (),
        evaluation: bool = False,
        wire: InferenceMessages | None = None,
    ):
        """Args:
        agent: whose `actor_step` chooses.
        variables: the parameters; `update()` is called once a batch.
        seed: of the sampling of actions.
        max_streams: rows of the state table.
        batch_sizes: requests are padded to the least of these that holds them, so that nothing
          compiles anew; a request of another size runs at its own.
        evaluation: act greedily.
        wire: take and give rows of bytes, by `infer_rows`.
        """
        self._wire = wire
        self._variables = variables
        self._timestep = specs.acting_struct(agent.env_spec)
        self._max_streams = max_streams
        self._batch_sizes = sorted(batch_sizes)
        self._key = jax.random.PRNGKey(seed)
        self._calls = 0
        self._lives = np.full(max_streams + 1, -1, np.int64)
        self._slots: dict[int, int] = {}
        self._slots_of: dict[bytes, np.ndarray] = {}
        self._last: tuple[Any, np.ndarray] | None = None
        initial = agent.initial_state(1)
        self._has_state = bool(jax.tree.leaves(initial))
        # One row more than there are streams: the rows that pad a batch write there.
        self._table = jax.tree.map(lambda leaf: jnp.repeat(leaf, max_streams + 1, axis=0), initial)

        def stateless(params: Any, key: Any, calls: Any, data: Any) -> Any:
            rng = jax.random.fold_in(key, calls)
            timestep = data if wire is None else wire.timestep(data)
            output, _ = agent.actor_step(rng, params, timestep, (), evaluation)
            return output if wire is None else wire.answer.to_rows(output)

        def stateful(
            params: Any, key: Any, calls: Any, data: Any, table: Nest, slots: Any, new: Any
        ) -> tuple[Any, Nest, Nest]:
            rng = jax.random.fold_in(key, calls)
            timestep = data if wire is None else wire.timestep(data)
            reset = new | (timestep.step_type == StepType.FIRST)

            def row(old: jax.Array, first: jax.Array) -> jax.Array:
                mask = reset.reshape(reset.shape + (1,) * (old.ndim - 1))
                return jnp.where(mask, first, old[slots])

            state = jax.tree.map(row, table, initial)
            output, after = agent.actor_step(rng, params, timestep, state, evaluation)
            table = jax.tree.map(lambda old, now: old.at[slots].set(now), table, after)
            return output if wire is None else wire.answer.to_rows(output), state, table

        self._stateless = jax.jit(stateless)
        self._stateful = jax.jit(stateful, donate_argnums=4)

    def inference(
        self, stream_ids: np.ndarray, timestep: TimeStep, life: Any = 0, with_state: bool = False
    ) -> Inference:
        """Chooses an action for each stream.

        Args:
          stream_ids: int32 `[B]`, each at most once.
          timestep: of these streams, `[B]`.
          life: of the streams, one integer or `[B]`.
          with_state: give the state before this step too; an actor asks where an unroll begins.

        Returns:
          NumPy arrays `[B, ...]`, and the version of the parameters that chose.
        """
        # The agent is told the streams, not the pool's slots; infos are not its.
        timestep = TimeStep(*timestep[:5], stream_ids)
        output, version, state = self._infer(stream_ids, timestep, life, with_state)
        leaves, structure = jax.tree_util.tree_flatten(output)
        if len(leaves[0]) != len(stream_ids):
            leaves = [leaf[: len(stream_ids)] for leaf in leaves]
        output = structure.unflatten([np.asarray(leaf) for leaf in leaves])
        return Inference(output.action, output.extras, version, state)

    def infer_rows(
        self, rows: np.ndarray, life: int | np.ndarray, with_state: bool
    ) -> tuple[np.ndarray, int, State | None]:
        """As `inference`, from rows of `wire.request` to rows of `wire.answer`, uint8 `[B, ...]`.

        Needs an inferencer that was made with a wire, which takes nothing else.
        """
        n = len(rows)
        assert self._wire is not None
        ids = self._wire.request.unpack(rows.reshape(-1), n)[0] if self._has_state else rows[:, 0]
        output, version, state = self._infer(ids, rows, life, with_state)
        return np.asarray(output)[:n], version, state

    def _infer(
        self, stream_ids: np.ndarray, data: Any, life: Any, with_state: bool
    ) -> tuple[Any, int, State | None]:
        """`(output, version, state)` for the time step or the rows in `data`; output is padded."""
        self._variables.update()
        version, params = self._variables.version, self._variables.params
        self._calls += 1
        n = len(stream_ids)
        size = n
        if self._batch_sizes:
            size = next((s for s in self._batch_sizes if s >= n), n)
        if size != n:
            data = _pad(data, size)
        if not self._has_state:
            output = self._stateless(params, self._key, self._calls, data)
            return output, version, () if with_state else None
        slots = self._find(stream_ids)
        new = self._lives[slots] != life
        self._lives[slots] = life
        if size != n:
            slots = np.concatenate([slots, np.full(size - n, self._max_streams, np.int32)])
            new = np.concatenate([new, np.ones(size - n, bool)])
        output, before, self._table = self._stateful(
            params, self._key, self._calls, data, self._table, slots, new
        )
        state = None
        if with_state:
            state = jax.tree.map(lambda leaf: np.asarray(leaf)[:n], before)
        return output, version, state

    def warm_up(self) -> None:
        """Compiles for every batch size, so that no request waits for it."""
        params = self._variables.params
        for size in self._batch_sizes:
            data = specs.zeros(self._timestep, size)
            if self._wire is not None:
                data = np.zeros((size, self._wire.request.row_bytes), np.uint8)
            if self._has_state:
                slots = np.full(size, self._max_streams, np.int32)
                new = np.ones(size, bool)
                table = jax.tree.map(jnp.array, self._table)  # the call takes its memory
                self._stateful(params, self._key, 0, data, table, slots, new)
            else:
                self._stateless(params, self._key, 0, data)

    def _find(self, stream_ids: np.ndarray) -> np.ndarray:
        """The table's rows of these streams, int32 `[B]`."""
        if self._last is not None and self._last[0] is stream_ids:
            return self._last[1]
        key = stream_ids.tobytes()
        slots = self._slots_of.get(key)
        if slots is None:
            for i in stream_ids.tolist():
                if i not in self._slots and len(self._slots) == self._max_streams:
                    raise ValueError(
                        f"stream {i} is one more than the {self._max_streams} that this "
                        "inferencer was made for"
                    )
                self._slots.setdefault(i, len(self._slots))
            slots = np.array([self._slots[i] for i in stream_ids.tolist()], np.int32)
            if len(self._slots_of) >= 1024:  # asynchronous pools come in ever new orders
                self._slots_of.clear()
            self._slots_of[key] = slots
        self._last = (stream_ids, slots)
        return slots


def _pad(nest: Nest, size: int) -> Nest:
    """Rows of zeros behind each leaf, up to `size`."""

    def pad(leaf: np.ndarray) -> np.ndarray:
        out = np.zeros((size, *leaf.shape[1:]), leaf.dtype)
        out[: len(leaf)] = leaf
        return out

    return jax.tree.map(pad, nest)
