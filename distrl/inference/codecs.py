"""How batches enter and leave an inferencer's compiled step."""

from typing import Any, Protocol

import numpy as np

from distrl import specs
from distrl.specs import EnvironmentSpec
from distrl.types import AgentOutput, TimeStep


class InferenceCodec(Protocol):
    """Between the form in which batches come and go, and what an agent takes and gives.

    Implementations: `TimeStepCodec` here, for batches of the same process, and
    `distrl.inference.messages.InferenceMessages`, for rows of bytes.
    """

    def decode(self, batch: Any) -> TimeStep:
        """Returns the time step `[B]`, with stream ids as `env_id`; traced by JAX."""

    def encode(self, output: AgentOutput) -> Any:
        """Returns the form in which the output leaves; traced by JAX."""

    def stream_ids(self, batch: Any) -> np.ndarray:
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

    def stream_ids(self, batch: TimeStep) -> np.ndarray:
        """See `InferenceCodec`."""
        return batch.env_id

    def zeros(self, batch_size: int) -> TimeStep:
        """See `InferenceCodec`."""
        return specs.zeros(self._struct, batch_size)
