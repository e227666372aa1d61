"""Inference: (stream ids, time step) -> action, with recurrent state kept by stream."""

from collections.abc import Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from distrl import specs
from distrl.agents.agent import Agent
from distrl.types import AgentOutput, Inference, Nest, StepType, TimeStep
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
    a stream's new life. One object serves one thread; `InferenceService` shares one among many.
    """

    def __init__(
        self,
        agent: Agent,
        variables: VariableClient,
        *,
        seed: int,
        max_streams: int,
        batch_sizes: Sequence[int] = (),
        evaluation: bool = False,
    ):
        """Args:
        agent: whose `actor_step` chooses.
        variables: the parameters; `update()` is called once a batch.
        seed: of the sampling of actions.
        max_streams: rows of the state table.
        batch_sizes: requests are padded to the least of these that holds them, so that nothing
          compiles anew; a request of another size runs at its own.
        evaluation: act greedily.
        """
        self._variables = variables
        self._timestep = specs.timestep_struct(agent.env_spec)
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

        def stateless(params: Any, key: Any, calls: Any, timestep: TimeStep) -> AgentOutput:
            rng = jax.random.fold_in(key, calls)
            return agent.actor_step(rng, params, timestep, (), evaluation)[0]

        def stateful(
            params: Any, key: Any, calls: Any, timestep: TimeStep, table: Nest, slots: Any, new: Any
        ) -> tuple[AgentOutput, Nest, Nest]:
            rng = jax.random.fold_in(key, calls)
            reset = new | (timestep.step_type == StepType.FIRST)

            def row(old: jax.Array, first: jax.Array) -> jax.Array:
                mask = reset.reshape(reset.shape + (1,) * (old.ndim - 1))
                return jnp.where(mask, first, old[slots])

            state = jax.tree.map(row, table, initial)
            output, after = agent.actor_step(rng, params, timestep, state, evaluation)
            table = jax.tree.map(lambda old, now: old.at[slots].set(now), table, after)
            return output, state, table

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
        self._variables.update()
        version, params = self._variables.version, self._variables.params
        self._calls += 1
        n = len(stream_ids)
        size = n
        if self._batch_sizes:
            size = next((s for s in self._batch_sizes if s >= n), n)
        timestep = TimeStep(*timestep[:5])  # neither ids nor infos are the agent's
        if size != n:
            timestep = _pad(timestep, size)
        state = None
        if self._has_state:
            slots = self._find(stream_ids)
            new = self._lives[slots] != life
            self._lives[slots] = life
            if size != n:
                slots = np.concatenate([slots, np.full(size - n, self._max_streams, np.int32)])
                new = np.concatenate([new, np.ones(size - n, bool)])
            output, before, self._table = self._stateful(
                params, self._key, self._calls, timestep, self._table, slots, new
            )
            if with_state:
                state = jax.tree.map(lambda leaf: np.asarray(leaf)[:n], before)
        else:
            output = self._stateless(params, self._key, self._calls, timestep)
            if with_state:
                state = ()
        leaves, structure = jax.tree_util.tree_flatten(output)
        if size != n:
            output = structure.unflatten([np.asarray(leaf)[:n] for leaf in leaves])
        else:
            output = structure.unflatten([np.asarray(leaf) for leaf in leaves])
        return Inference(output.action, output.extras, version, state)

    def warm_up(self) -> None:
        """Compiles for every batch size, so that no request waits for it."""
        params = self._variables.params
        for size in self._batch_sizes:
            timestep = specs.zeros(self._timestep, size)
            if self._has_state:
                slots = np.full(size, self._max_streams, np.int32)
                new = np.ones(size, bool)
                table = jax.tree.map(jnp.array, self._table)  # the call takes its memory
                self._stateful(params, self._key, 0, timestep, table, slots, new)
            else:
                self._stateless(params, self._key, 0, timestep)

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
