"""The actor: environments -> inferencer -> replay."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from distrl.envs.pool import Pool
from distrl.episodes import EpisodeStatistics
from distrl.errors import Stopped
from distrl.inferencer import InferenceSource
from distrl.metrics import Report
from distrl.replay.buffer import ReplayWriter
from distrl.types import Inference, TimeStep

_LIFE_BITS = 16  # of a stream's life, that rise when the inferencer restarts; above, the actor's


class Actor:
    """Steps a pool of environments; local and remote parts, sync and async pools look the same."""

    def __init__(
        self,
        pool: Pool,
        inferencer: InferenceSource,
        replay: ReplayWriter,
        *,
        first_stream: int = 0,
        life: int = 0,
    ):
        """Args:
        pool: the environments; the actor starts it.
        inferencer: chooses the actions.
        replay: takes the steps.
        first_stream: environment i of the pool is stream `first_stream + i`.
        life: of the actor; rises when it restarts, and the lives of its streams with it.
        """
        self._pool = pool
        self._inferencer = inferencer
        self._replay = replay
        self._life = life << _LIFE_BITS
        self._source_life: int | None = None
        self._streams = (pool.env_ids + first_stream).astype(np.int32)
        self._statistics = EpisodeStatistics(pool.num_envs, pool.spec)
        pool.start()
        self._timestep = pool.recv()

    def step(self) -> None:
        """One turn: infer, send the actions, store the step, receive the next one."""
        timestep = self._timestep
        if self._pool.is_async:
            env_ids: npt.NDArray[np.int32] | None = timestep.env_id
            streams = self._streams[timestep.env_id]
        else:  # the same array each time: those who look streams up can keep what they found
            env_ids = None
            streams = self._streams
        inference = self._infer(streams, timestep)
        self._pool.send(inference.action, self._pool.env_ids if env_ids is None else env_ids)
        self._replay.add(streams, timestep, inference, self._life)
        self._statistics.add(timestep, env_ids)
        self._timestep = self._pool.recv()

    def _infer(self, streams: npt.NDArray[Any], timestep: TimeStep) -> Inference:
        needs_state = self._replay.needs_state(streams, self._life)
        inference = self._inferencer.inference(streams, timestep, self._life, needs_state)
        if inference.source_life != self._source_life:
            if self._source_life is not None:
                # The service was started again, and the streams' recurrent state was lost with it:
                # they begin a new life, and with it new unrolls, at this step.
                self._life += 1
                needs_state = self._replay.needs_state(streams, self._life)
                inference = self._inferencer.inference(streams, timestep, self._life, needs_state)
            self._source_life = inference.source_life
        return inference

    @property
    def acted(self) -> int:
        """Environment steps so far."""
        return self._statistics.steps

    def run(
        self,
        should_stop: Callable[[], bool],
        report: Callable[[Report], None],
        report_interval: float = 0.1,
    ) -> None:
        """Turns until `should_stop()`; then flushes the replay and reports what is left.

        Args:
          should_stop: asked before each turn.
          report: takes what happened since the last report; must not block.
          report_interval: seconds between two reports.
        """
        due = time.monotonic() + report_interval
        try:
            while not should_stop():
                self.step()
                if time.monotonic() >= due:
                    report(self.take_report())
                    due = time.monotonic() + report_interval
            self._replay.flush()
        except Stopped:
            pass  # a wait of the replay ended because the program stops: that is the end of run
        report(self.take_report())

    def take_report(self) -> Report:
        """What happened since the last call."""
        return self._statistics.take(self._pool.restarts)

    def close(self) -> None:
        """Closes the pool."""
        self._pool.close()
