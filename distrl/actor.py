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

_LIFE_BITS = 16  # of a stream's life, to count the inferencer's restarts; above: the actor's life


class Actor:
    """Steps a pool of environments, synchronous or not, with local or remote parts."""

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
        replay: stores the steps.
        first_stream: environment i of the pool is stream `first_stream + i`.
        life: the actor's life, from which those of its streams follow.
        """
        self._pool = pool
        self._inferencer = inferencer
        self._replay = replay
        self._life = life << _LIFE_BITS
        self._source_life: int | None = None
        self._streams = (pool.env_ids + first_stream).astype(np.int32)
        self._statistics = EpisodeStatistics(pool.num_envs, pool.spec)
        pool.start()
        self._env_ids: npt.NDArray[np.int32] | None = None  # all, in order
        self._receive()

    def _receive(self) -> None:
        """Receives the next step, and counts it: it was taken, whether or not another follows."""
        self._timestep = self._pool.recv()
        if self._pool.is_async:
            self._env_ids = self._timestep.env_id
        self._statistics.add(self._timestep, self._env_ids)

    def step(self) -> None:
        """Infers, sends the actions, stores the step, and receives the next one."""
        timestep, env_ids = self._timestep, self._env_ids
        # If it is all of them, the same array each time, so that look-ups by stream can be cached.
        streams = self._streams if env_ids is None else self._streams[env_ids]
        inference = self._infer(streams, timestep)
        self._pool.send(inference.action, self._pool.env_ids if env_ids is None else env_ids)
        self._replay.add(streams, timestep, inference, self._life)
        self._receive()

    def _infer(self, streams: npt.NDArray[Any], timestep: TimeStep) -> Inference:
        needs_state = self._replay.needs_state(streams, self._life)
        inference = self._inferencer.inference(streams, timestep, self._life, needs_state)
        if inference.source_life != self._source_life:
            if self._source_life is not None:
                # The inferencer restarted and lost the streams' recurrent state: they begin a new
                # life at this step, and with it new unrolls.
                self._life += 1
                needs_state = self._replay.needs_state(streams, self._life)
                inference = self._inferencer.inference(streams, timestep, self._life, needs_state)
            self._source_life = inference.source_life
        return inference

    @property
    def acted(self) -> int:
        """Number of environment steps so far."""
        return self._statistics.steps

    @property
    def episodes(self) -> int:
        """Number of episodes that have ended so far."""
        return self._statistics.episodes

    @property
    def unreported(self) -> tuple[int, int]:
        """Environment steps, and ended episodes, since the last report."""
        return self._statistics.unreported

    def run(
        self,
        should_stop: Callable[[], bool],
        report: Callable[[Report], None],
        report_interval: float = 0.1,
    ) -> None:
        """Steps until `should_stop()`; then flushes the replay and sends a last report.

        Args:
          should_stop: asked before each step.
          report: called with what happened since the last report; must not block.
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
            pass  # the program stops during a wait of the replay: `run` ends too
        report(self.take_report())

    def take_report(self) -> Report:
        """Returns what happened since the last call."""
        return self._statistics.take(self._pool.restarts)

    def close(self) -> None:
        """Closes the pool."""
        self._pool.close()
