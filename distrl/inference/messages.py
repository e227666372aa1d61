"""The layout of an inference server's requests and answers."""

import struct
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from distrl import specs
from distrl.agents.agent import Agent
from distrl.agents.structs import extras_struct, state_struct
from distrl.runtime.codec import Codec
from distrl.types import AgentOutput, Array, Inference, State, TimeStep

# In requests: number of rows, life of the streams, whether the state is asked for, and the core
# on which client and server should stay.
# In answers: number of rows, version, whether states follow, life of the server.
# 16 bytes, so that rows are aligned.
HEADER = struct.Struct("<iiii")
ANY_CORE = -1


class InferenceMessages:
    """Packs and unpacks messages: a header, then rows, then rows of recurrent state if asked for.

    Both ends derive the layout from the agent. It is also the `InferenceCodec` of an inferencer
    whose batches are rows.

    Attributes:
      request: rows of `(stream_id, TimeStep)`.
      answer: rows of `AgentOutput`.
      state: rows of the agent's recurrent state.
    """

    def __init__(self, agent: Agent):
        """Args: agent: the program's agent."""
        stream = jax.ShapeDtypeStruct((), np.int32)
        step = specs.timestep_struct(agent.env_spec)
        self.request = Codec((stream, step), "inference request")
        self.answer = Codec(
            AgentOutput(specs.struct(agent.env_spec.action), extras_struct(agent)),
            "inference answer",
        )
        self.state = Codec(state_struct(agent), "inference state")

    def pack_request(
        self, stream_ids: npt.NDArray[np.int32], timestep: TimeStep, life: int, with_state: bool
    ) -> bytes:
        """Returns a request; see `request_rows`."""
        n = len(stream_ids)
        rows = self.request.pack((stream_ids, TimeStep(*timestep[:5])), n)
        return HEADER.pack(n, life, with_state, ANY_CORE) + rows

    def request_rows(self, data: bytes | memoryview) -> tuple[npt.NDArray[Any], int, bool]:
        """Returns a request's `(rows uint8 [n, row_bytes], life, with_state)`.

        Raises:
          SpecError: the length does not match the number of rows.
        """
        n, life, with_state, _ = HEADER.unpack_from(data)
        self.request.check(len(data) - HEADER.size, n)
        rows = np.frombuffer(data, np.uint8, offset=HEADER.size)
        return rows.reshape(n, self.request.row_bytes), life, bool(with_state)

    def pack_answer(
        self, rows: npt.NDArray[Any], version: int, state: bytes | None, life: int = 0
    ) -> bytes:
        """Returns an answer.

        Args:
          rows: uint8 `[n, row_bytes]`.
          version: version of the parameters.
          state: packed recurrent states; None: not asked for.
          life: life of the server.
        """
        header = HEADER.pack(len(rows), version, state is not None, life)
        return b"".join([header, rows.tobytes(), state or b""])

    def pack_states(self, states: State, start: int, end: int) -> bytes:
        """Returns rows `start` to `end` of a batch's states, as an answer has them."""
        part = jax.tree.map(lambda leaf: leaf[start:end], states)
        return self.state.pack(part, end - start)

    def unpack_answer(self, data: bytes) -> Inference:
        """Returns the answer as an Inference."""
        n, version, has_state, life = HEADER.unpack_from(data)
        end = HEADER.size + n * self.answer.row_bytes
        output = self.answer.unpack(data[:end] if has_state else data, n, HEADER.size)
        state = self.state.unpack(data, n, end) if has_state else None
        return Inference(output.action, output.extras, version, state, life)

    def decode(self, rows: Array) -> TimeStep:
        """See `InferenceCodec`. Takes rows of `request`."""
        stream_ids, timestep = self.request.from_rows(rows)
        return timestep._replace(env_id=stream_ids)

    def encode(self, output: AgentOutput) -> Array:
        """See `InferenceCodec`. Returns rows of `answer`."""
        return self.answer.to_rows(output)

    def stream_ids(self, rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """See `InferenceCodec`."""
        return self.request.unpack(rows.reshape(-1), len(rows))[0]

    def zeros(self, batch_size: int) -> npt.NDArray[Any]:
        """See `InferenceCodec`."""
        return np.zeros((batch_size, self.request.row_bytes), np.uint8)
