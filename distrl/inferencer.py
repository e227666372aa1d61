"""Inference: (stream ids, time step) -> action, with recurrent state kept by stream."""

import bisect
from collections.abc import Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from distrl import specs
from distrl.agents.agent import Agent
from distrl.agents.compiling import compiler_options
from distrl.agents.structs import initial_row, params_struct
from distrl.learning.compile_ahead import CompileAhead
from distrl.lockstep import LockstepVariables
from distrl.param_versions import stored_version
from distrl.random_keys import derive, numbered, root
from distrl.rounds.clients import RoundVariables
from distrl.specs import EnvironmentSpec
from distrl.types import AgentOutput, Inference, Nest, State, StepType, TimeStep
from distrl.variables.client import VariableClient

_MOST_CALLS = 2**31 - 1  # most calls that int32 can number


class InferenceSource(Protocol):
    """The source of an actor's actions: an `Inferencer` in its process, or a service."""

    def inference(
        self,
        stream_ids: npt.NDArray[np.int32],
        timestep: TimeStep,
        life: int = 0,
        with_state: bool = False,
    ) -> Inference:
        """See `Inferencer.inference`."""


class InferenceCodec(Protocol):
    """Converts between the form of batches and what an agent takes and returns.

    `TimeStepCodec` is for batches of the same process; `InferenceMessages` in `distrl.inference` is
    for rows of bytes.
    """

    def decode(self, batch: Any) -> TimeStep:
        """Returns the time step `[B]`, with stream ids as `env_id`; traced by JAX."""

    def encode(self, output: AgentOutput) -> Any:
        """Returns the output in the form of batches; traced by JAX."""

    def stream_ids(self, batch: Any) -> npt.NDArray[Any]:
        """Returns the stream ids of a batch on the host, int32 `[B]`."""

    def zeros(self, batch_size: int) -> Any:
        """Returns a batch of zeros, to compile with."""


class TimeStepCodec:
    """Takes time steps and gives agent outputs, both unchanged."""

    def __init__(self, env_spec: EnvironmentSpec):
        """Args: env_spec: the agent's environment spec."""
        self._struct = specs.acting_struct(env_spec)

    def decode(self, batch: TimeStep) -> TimeStep:
        """See `InferenceCodec`."""
        return batch

    def encode(self, output: AgentOutput) -> AgentOutput:
        """See `InferenceCodec`."""
        return output

    def stream_ids(self, batch: TimeStep) -> npt.NDArray[Any]:
        """See `InferenceCodec`."""
        return batch.env_id

    def zeros(self, batch_size: int) -> TimeStep:
        """See `InferenceCodec`."""
        return specs.zeros(self._struct, batch_size)


class Inferencer:
    """Runs an agent's `actor_step` on the newest parameters it has.

    The agent's recurrent state is kept in a table with a row per stream; it is reset at FIRST and
    when a stream begins a new life. One object serves one thread; `InferenceServer` shares one
    among many.
    """

    def __init__(
        self,
        agent: Agent,
        variables: VariableClient | LockstepVariables | RoundVariables | None,
        *,
        seed: int,
        max_streams: int,
        batch_sizes: Sequence[int] = (),
        evaluation: bool = False,
        codec: InferenceCodec | None = None,
    ):
        """Args:
        agent: the agent, whose `actor_step` is run.
        variables: the parameters; `update()` is called once per batch. None: see `set_variables`.
        seed: seed for sampling actions.
        max_streams: rows of the state table.
        batch_sizes: requests are padded to the smallest of these that holds them, so that nothing
          is compiled again; a larger request runs at its own size.
        evaluation: act greedily.
        codec: the form of `infer_encoded`'s batches; None: time steps.
        """
        self._codec = codec = codec or TimeStepCodec(agent.env_spec)
        self._variables: Any = variables
        self._ahead: CompileAhead | None = None
        self._max_streams = max_streams
        self._batch_sizes = sorted(batch_sizes)
        self._key = derive(root(seed), "act")  # parent of the keys of `_MOST_CALLS` calls
        self._calls = 0
        self._lives = np.full(max_streams + 1, -1, np.int64)
        self._slots: dict[int, int] = {}
        self._slots_of: dict[bytes, npt.NDArray[Any]] = {}
        self._last: tuple[Any, npt.NDArray[Any]] | None = None
        initial = initial_row(agent)
        self._has_state = bool(jax.tree.leaves(initial))
        # One more row than streams, which the padding of a batch writes to.
        self._table = jax.tree.map(lambda leaf: jnp.repeat(leaf, max_streams + 1, axis=0), initial)

        def stateless(params: Any, key: Any, calls: Any, data: Any) -> Any:
            rng = numbered(key, calls)
            output, _ = agent.actor_step(rng, params, codec.decode(data), (), evaluation)
            return codec.encode(output)

        def stateful(
            params: Any, key: Any, calls: Any, data: Any, table: Nest, slots: Any, new: Any
        ) -> tuple[Any, Nest, Nest]:
            rng = numbered(key, calls)
            timestep = codec.decode(data)
            reset = new | (timestep.step_type == StepType.FIRST)

            def row(old: jax.Array, first: jax.Array) -> jax.Array:
                mask = reset.reshape(reset.shape + (1,) * (old.ndim - 1))
                return jnp.where(mask, first, old[slots])

            state = jax.tree.map(row, table, initial)
            output, after = agent.actor_step(rng, params, timestep, state, evaluation)
            table = jax.tree.map(lambda old, now: old.at[slots].set(now), table, after)
            return codec.encode(output), state, table

        options = compiler_options(agent)
        self._stateless = jax.jit(stateless, compiler_options=options)
        self._stateful = jax.jit(stateful, donate_argnums=4, compiler_options=options)

    def inference(
        self,
        stream_ids: npt.NDArray[np.int32],
        timestep: TimeStep,
        life: Any = 0,
        with_state: bool = False,
    ) -> Inference:
        """Chooses an action for each stream.

        Args:
          stream_ids: int32 `[B]`, without duplicates.
          timestep: time steps of these streams, `[B]`.
          life: life of the streams, one integer or `[B]`.
          with_state: return the state before this step too; actors need it where an unroll begins.

        Returns:
          NumPy arrays `[B, ...]`, and the version of the parameters that chose the actions.
        """
        # The agent gets stream ids instead of the pool's slots, and no infos.
        timestep = TimeStep(*timestep[:5], stream_ids)
        output, version, state = self.infer_encoded(timestep, len(stream_ids), life, with_state)
        return Inference(output.action, output.extras, version, state)

    def request_version(self, version: int) -> None:
        """Requests the parameters of a round, for the next inference; safe in any thread."""
        assert isinstance(self._variables, RoundVariables)
        self._variables.request_version(version)

    def set_state(self, stream_ids: npt.NDArray[np.int32], state: State) -> None:
        """Replaces the recurrent state of streams, `[B, ...]`, as if a step had not been made."""
        slots = self._find(stream_ids)
        self._table = jax.tree.map(lambda old, now: old.at[slots].set(now), self._table, state)

    @property
    def has_state(self) -> bool:
        """Whether the agent is recurrent."""
        return self._has_state

    def padded_size(self, n: int) -> int:
        """Returns the rows with which a batch of n streams runs."""
        sizes = self._batch_sizes
        at = bisect.bisect_left(sizes, n)
        return sizes[at] if at < len(sizes) else n

    def infer_encoded(
        self,
        data: Any,
        n: int,
        life: int | npt.NDArray[Any],
        with_state: bool,
        padded: bool = False,
    ) -> tuple[Any, int, State | None]:
        """Does what `inference` does, for a batch in the codec's form.

        Args:
          data: the batch.
          n: its number of streams.
          life: life of the streams, one integer or `[n]`.
          with_state: return the state before this step too.
          padded: `data` has `padded_size(n)` rows, of which the first n count.

        Returns:
          The output in the codec's form, as NumPy arrays; the version; the state.
        """
        output, version, state = self._run(data, n, life, with_state, padded)
        leaves, structure = jax.tree_util.tree_flatten(output)
        return structure.unflatten([np.asarray(leaf)[:n] for leaf in leaves]), version, state

    def _run(
        self, data: Any, n: int, life: int | npt.NDArray[Any], with_state: bool, is_padded: bool
    ) -> tuple[Any, int, State | None]:
        """Does what `infer_encoded` does; the output is padded and on the device."""
        self._variables.update()
        version, params = stored_version(self._variables.version), self._variables.params
        self._count_call()
        size = self.padded_size(n)
        padded = data if size == n or is_padded else _pad(data, size)
        if not self._has_state:
            output = self._stateless(params, self._key, self._calls, padded)
            return output, version, () if with_state else None
        stream_ids = self._codec.stream_ids(data)
        slots = self._find(stream_ids[:n] if is_padded else stream_ids)
        new = self._lives[slots] != life
        self._lives[slots] = life
        if size != n:
            slots = np.concatenate([slots, np.full(size - n, self._max_streams, np.int32)])
            new = np.concatenate([new, np.ones(size - n, bool)])
        output, before, self._table = self._stateful(
            params, self._key, self._calls, padded, self._table, slots, new
        )
        state = None
        if with_state:
            state = jax.tree.map(lambda leaf: np.asarray(leaf)[:n], before)
        return output, version, state

    def continue_random_keys(self, other: "Inferencer") -> None:
        """Continues with the keys that another inferencer would have drawn next."""
        self._key, self._calls = other._key, other._calls

    def _count_call(self) -> None:
        self._calls += 1
        if self._calls == _MOST_CALLS:
            self._key, self._calls = numbered(self._key, 0), 1

    def compile_ahead(self, agent: Agent, rows: int) -> None:
        """Begins to compile in another thread, before the parameters are known.

        Args:
          agent: the agent, for the shapes of its parameters.
          rows: streams of a batch, if all batches have one size.
        """
        params = params_struct(agent)
        for size in self._batch_sizes[-1:] or [rows]:
            arguments = (params, self._key, 1, self._codec.zeros(size))
            if self._has_state:
                slots, new = np.zeros(size, np.int32), np.zeros(size, bool)
                self._ahead = CompileAhead(self._stateful, *arguments, self._table, slots, new)
            else:
                self._ahead = CompileAhead(self._stateless, *arguments)

    def set_variables(self, variables: VariableClient | LockstepVariables | RoundVariables) -> None:
        """Sets the variables that `__init__` was not given; waits until `compile_ahead` is done."""
        self._variables = variables
        if self._ahead is not None:
            self._ahead.wait()

    def warm_up(self) -> None:
        """Compiles for every batch size, so that no request has to wait for it."""
        params = self._variables.params
        for size in self._batch_sizes:
            data = self._codec.zeros(size)
            if self._has_state:
                slots = np.full(size, self._max_streams, np.int32)
                new = np.ones(size, bool)
                table = jax.tree.map(jnp.array, self._table)  # the call takes over its memory
                self._stateful(params, self._key, 0, data, table, slots, new)
            else:
                self._stateless(params, self._key, 0, data)

    def _find(self, stream_ids: npt.NDArray[np.int32]) -> npt.NDArray[Any]:
        """Returns the table's rows of these streams, int32 `[B]`."""
        if self._last is not None and self._last[0] is stream_ids:
            return self._last[1]
        key = stream_ids.tobytes()
        slots = self._slots_of.get(key)
        if slots is None:
            unknown = dict.fromkeys(i for i in stream_ids.tolist() if i not in self._slots)
            free = self._max_streams - len(self._slots)
            if len(unknown) > free:
                raise ValueError(
                    f"stream {list(unknown)[free]} is one more than the {self._max_streams} that "
                    "this inferencer was made for"
                )
            for i in unknown:
                self._slots[i] = len(self._slots)
            slots = np.array([self._slots[i] for i in stream_ids.tolist()], np.int32)
            if len(self._slots_of) >= 1024:  # asynchronous pools come in ever new orders
                self._slots_of.clear()
            self._slots_of[key] = slots
        self._last = (stream_ids, slots)
        return slots


def _pad(nest: Nest, size: int) -> Nest:
    """Appends rows of zeros to each leaf, up to `size`."""

    def pad(leaf: npt.NDArray[Any]) -> npt.NDArray[Any]:
        out = np.zeros((size, *leaf.shape[1:]), leaf.dtype)
        out[: len(leaf)] = leaf
        return out

    return jax.tree.map(pad, nest)
