"""The streams of one policy in an actor: actions for them, and where their steps go."""

from typing import Any

import jax
import numpy.typing as npt

from distrl.episodes import EpisodeStatistics
from distrl.inferencer import InferenceSource
from distrl.param_versions import stored_version
from distrl.replay.buffer import ReplayWriter
from distrl.rounds.clients import RoundWriter
from distrl.specs import EnvironmentSpec
from distrl.types import Inference, TimeStep

# A stream's life is int32: its lower bits count the inferencer's restarts, the upper ones are the
# lowest of the actor's life. Lives are only compared for equality, so that they may wrap around.
_LIFE_BITS = 16


class PolicyStreams:
    """Asks one inferencer for actions, and stores the steps of its streams.

    Attributes:
      statistics: statistics of the streams' episodes; the actor adds the steps that it receives.
    """

    def __init__(
        self,
        inferencer: InferenceSource,
        replay: ReplayWriter | None,
        spec: EnvironmentSpec,
        num_streams: int,
        life: int = 0,
    ):
        """Args:
        inferencer: chooses the actions.
        replay: stores the steps; None: no policy learns from them.
        spec: the streams' spec.
        num_streams: number of streams, which the statistics number from 0.
        life: the actor's life, from which the lives of its streams follow.
        """
        self._inferencer = inferencer
        self._replay = replay
        self._rounds = replay if isinstance(replay, RoundWriter) else None
        self._life = stored_version(life << _LIFE_BITS)
        self._source_life: int | None = None
        self.statistics = EpisodeStatistics(num_streams, spec)

    def infer(self, streams: npt.NDArray[Any], timestep: TimeStep) -> Inference:
        """Returns actions.

        Args:
          streams: the streams' ids in the program, int32 `[B]`.
          timestep: their time steps `[B, ...]`.
        """
        if self._rounds is None:
            return self._infer(streams, timestep)
        source: Any = self._inferencer  # not a rule's: rules have no rounds
        self._rounds.begin(source.request_version)
        inference = self._infer(streams, timestep)
        if self._rounds.is_due(self._life):
            self._rounds.end(streams, timestep, inference, self._life)
            if jax.tree.leaves(inference.state):
                source.set_state(streams, inference.state)
            inference = self._infer(streams, timestep)
        return inference

    def _infer(self, streams: npt.NDArray[Any], timestep: TimeStep) -> Inference:
        needs_state = self._replay is not None and self._replay.needs_state(streams, self._life)
        inference = self._inferencer.inference(streams, timestep, self._life, needs_state)
        if inference.source_life != self._source_life:
            if self._source_life is not None:
                # The inferencer restarted and lost the streams' recurrent state: they begin a new
                # life at this step, and with it new unrolls.
                self._source_life = inference.source_life
                self._life = stored_version(self._life + 1)
                return self._infer(streams, timestep)
            self._source_life = inference.source_life
        return inference

    def store(self, streams: npt.NDArray[Any], timestep: TimeStep, inference: Inference) -> None:
        """Stores a step. Args: streams, timestep: as given to `infer`. inference: its answer."""
        if self._replay is not None:
            self._replay.add(streams, timestep, inference, self._life)

    def release(self) -> bool:
        """See `ReplayWriter.release`."""
        return self._replay is not None and self._replay.release()

    def flush(self) -> None:
        """See `ReplayWriter.flush`."""
        if self._replay is not None:
            self._replay.flush()
