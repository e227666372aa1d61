"""The actor: environments -> inferencer -> replay."""

import abc
import time
from collections.abc import Callable
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

from distrl.envs.pool import Pool
from distrl.episodes import Record
from distrl.errors import Stopped
from distrl.inferencer import InferenceSource
from distrl.metrics.reports import Report
from distrl.policy_streams import PolicyStreams
from distrl.replay.buffer import ReplayWriter
from distrl.runtime.time_account import (
    ENV_STEP,
    INFERENCE,
    OTHER,
    REPLAY_WRITE,
    current_account,
    in_state,
    of_thread,
)


class ActorLogs(TypedDict):
    """What happened in one step of an actor.

    Attributes:
      env_steps: environment steps that it took, without resets.
      episodes: records of the episodes that ended, see `distrl.episodes.Record`; with several
        policies a dict of these by policy.
      version: version of the parameters that chose the actions, an int or int32 [B]; with several
        policies a dict by policy, of those that had streams to act for.
    """

    env_steps: int
    episodes: Any
    version: Any


class ActorLoop(abc.ABC):
    """The loop of an actor."""

    @property
    @abc.abstractmethod
    def acted(self) -> int:
        """Environment steps so far."""

    @property
    @abc.abstractmethod
    def episodes(self) -> int:
        """Episodes that have ended so far."""

    @abc.abstractmethod
    def step(self) -> ActorLogs:
        """Infers, sends the actions, stores the step, and receives the next one.

        Time that belongs to no other state is accounted to the calling thread's current one, which
        should be ENV_STEP: where steps follow each other closely, the time between them is not
        worth a switch.
        """

    @abc.abstractmethod
    def finish(self) -> None:
        """Stores the last step received; its action is inferred but not sent.

        Call it once, after the last `step`: then all transitions that were made are stored, and
        episodes that have ended are whole.
        """

    @abc.abstractmethod
    def release(self) -> bool:
        """See `ReplayWriter.release`."""

    @abc.abstractmethod
    def flush(self) -> None:
        """Waits until every unroll that was completed is in its table."""

    @abc.abstractmethod
    def take_report(self) -> Any:
        """Returns what happened since the last call."""

    @property
    @abc.abstractmethod
    def unreported(self) -> tuple[int, int]:
        """Environment steps, and ended episodes, since the last report."""

    def run(
        self,
        should_stop: Callable[[], bool],
        report: Callable[[Any], None],
        report_interval: float = 0.1,
        is_finished: Callable[[], bool] = lambda: False,
    ) -> None:
        """Steps until `should_stop()`; then flushes the replay and sends a last report.

        Args:
          should_stop: asked before each step.
          report: called with `take_report()`; must not block.
          report_interval: seconds between two reports.
          is_finished: asked once after the last step: whether to `finish`.
        """
        due = time.monotonic() + report_interval
        current_account().switch(ENV_STEP)
        try:
            while not should_stop():
                self.step()
                if time.monotonic() >= due:
                    with in_state(OTHER):
                        report(self.take_report())
                    due = time.monotonic() + report_interval
            if is_finished() and self.acted:
                self.finish()
            self.flush()
        except Stopped:
            pass  # the program stops during a wait of the replay: `run` ends too
        current_account().switch(OTHER)
        report(self.take_report())


class Actor(ActorLoop):
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
        life: the actor's life, from which the lives of its streams follow.
        """
        self._pool = pool
        self._part = PolicyStreams(inferencer, replay, pool.spec, pool.num_envs, life)
        self._statistics = self._part.statistics
        self._all_streams = (pool.env_ids + first_stream).astype(np.int32)
        # The same array whenever it has all of them, so that look-ups by stream can be cached.
        self._streams = self._all_streams
        pool.start()
        self._env_ids: npt.NDArray[np.int32] | None = None  # all, in order
        self._receive()

    def _receive(self) -> list[Record]:
        """Receives the next step and counts it, whether or not another follows: it was taken.

        Returns the records of the episodes that it ended.
        """
        self._timestep = self._pool.recv()
        if self._pool.is_async:
            self._env_ids = self._timestep.env_id
            self._streams = self._all_streams[self._env_ids]
        ended = self._statistics.add(self._timestep, self._env_ids)
        return [] if ended is None else ended[1]

    def step(self) -> ActorLogs:
        """See `ActorLoop`."""
        timestep, env_ids, streams = self._timestep, self._env_ids, self._streams
        account = of_thread.account
        began = account.clock()
        inference = self._part.infer(streams, timestep)
        account.lap(INFERENCE, began)
        self._pool.send(inference.action, self._pool.env_ids if env_ids is None else env_ids)
        self._part.store(streams, timestep, inference)  # while the environments step
        before = self._statistics.steps
        ended = self._receive()
        steps = self._statistics.steps - before
        return {"env_steps": steps, "episodes": ended, "version": inference.version}

    def finish(self) -> None:
        """See `ActorLoop`."""
        with in_state(INFERENCE):
            inference = self._part.infer(self._streams, self._timestep)
        self._part.store(self._streams, self._timestep, inference)

    @property
    def acted(self) -> int:
        """See `ActorLoop`."""
        return self._statistics.steps

    @property
    def episodes(self) -> int:
        """See `ActorLoop`."""
        return self._statistics.episodes

    @property
    def unreported(self) -> tuple[int, int]:
        """See `ActorLoop`."""
        return self._statistics.unreported

    def release(self) -> bool:
        """See `ActorLoop`."""
        with in_state(REPLAY_WRITE):
            return self._part.release()

    def flush(self) -> None:
        """See `ActorLoop`."""
        with in_state(REPLAY_WRITE):
            self._part.flush()

    def take_report(self) -> Report:
        """Returns what happened since the last call."""
        return self._statistics.take(self._pool.restarts)

    def close(self) -> None:
        """Closes the pool."""
        self._pool.close()
