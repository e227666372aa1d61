"""The layout of requests to an inference service and of its answers."""

import struct

import jax
import numpy as np

from distrl import specs
from distrl.agents.agent import Agent, extras_struct, state_struct
from distrl.runtime.codec import Codec
from distrl.types import AgentOutput, Array, Inference, TimeStep

# Rows; life of the streams, or version; with state; life of the service. Rows start at 16 bytes.
_HEADER = struct.Struct("<iiii")


class InferenceMessages:
    """What both ends derive from the agent: a header, then rows; then rows of state, if any.

    Attributes:
      request: rows of `(stream_id, TimeStep)`.
      answer: rows of `AgentOutput`.
      state: rows of the agent's state.
    """

    def __init__(self, agent: Agent):
        """Args: agent: of the program."""
        stream = jax.ShapeDtypeStruct((), np.int32)
        step = specs.timestep_struct(agent.env_spec)
        self.request = Codec((stream, step), "inference request")
        self.answer = Codec(
            AgentOutput(specs.struct(agent.env_spec.action), extras_struct(agent)),
            "inference answer",
        )
        self.state = Codec(state_struct(agent), "inference state")

    def pack_request(
        self, stream_ids: np.ndarray, timestep: TimeStep, life: int, with_state: bool
    ) -> bytes:
        """See `request_rows`."""
        n = len(stream_ids)
        rows = self.request.pack((stream_ids, TimeStep(*timestep[:5])), n)
        return _HEADER.pack(n, life, with_state, 0) + rows

    def timestep(self, rows: Array) -> TimeStep:
        """The time step in rows of `request`, `env_id` the streams; traced by JAX."""
        stream_ids, timestep = self.request.from_rows(rows)
        return timestep._replace(env_id=stream_ids)

    def request_rows(self, data: bytes) -> tuple[np.ndarray, int, bool]:
        """`(rows uint8 [n, row_bytes], life, with_state)`.

        Raises:
          SpecError: the length is not that of the rows.
        """
        n, life, with_state, _ = _HEADER.unpack_from(data)
        self.request.check(len(data) - _HEADER.size, n)
        rows = np.frombuffer(data, np.uint8, offset=_HEADER.size)
        return rows.reshape(n, self.request.row_bytes), life, bool(with_state)

    def pack_answer(
        self, rows: np.ndarray, version: int, state: bytes | None, life: int = 0
    ) -> bytes:
        """An answer from rows uint8 `[n, row_bytes]`, and packed states if they were asked for."""
        header = _HEADER.pack(len(rows), version, state is not None, life)
        return b"".join([header, rows.tobytes(), state or b""])

    def unpack_answer(self, data: bytes) -> Inference:
        """The answer as an Inference."""
        n, version, has_state, life = _HEADER.unpack_from(data)
        end = _HEADER.size + n * self.answer.row_bytes
        output = self.answer.unpack(data[:end] if has_state else data, n, _HEADER.size)
        state = self.state.unpack(data, n, end) if has_state else None
        return Inference(output.action, output.extras, version, state, life)
