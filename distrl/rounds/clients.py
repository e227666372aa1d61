"""The learner's and the actors' side of rounds; see `distrl.rounds.collection`."""

import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from distrl.errors import DeadlineExceeded, Stopped
from distrl.replay.buffer import ReplayReader, ReplayWriter
from distrl.replay.client import UnrollingReplayBuffer
from distrl.rounds.collection import CollectionRounds
from distrl.runtime.patience import Deadline
from distrl.runtime.time_account import PARAMETER_WAIT, REPLAY_WRITE, in_state
from distrl.types import Inference, Params, Sample, TimeStep
from distrl.variables.client import VariableSource
from distrl.variables.relay import RELAY_S

_BATCH_S = 1.0  # seconds between two checks that the table still has the awaited batch
_POLL_S = 0.005  # seconds between two checks whether a relay has the parameters of a round


class RoundReader(ReplayReader):
    """The learner's reader: when no batch is left, a round makes data for the next ones.

    Attributes:
      version: returns the learner's version.
    """

    def __init__(
        self, replay: ReplayReader, rounds: CollectionRounds, stop: threading.Event | None
    ):
        """Args:
        replay: where the batches come from.
        rounds: the rounds.
        stop: set when the program stops; ends waits.
        """
        self.version: Callable[[], int] = lambda: 0
        self._replay, self._rounds, self._stop = replay, rounds, stop

    @property
    def is_prioritized(self) -> bool:
        return self._replay.is_prioritized

    def sample(self, timeout: float | None) -> Sample:
        deadline = Deadline(timeout)
        while True:
            if not self._replay.has_more():
                self._rounds.collect(self.version(), self._stop, timeout)
                continue
            try:
                return self._replay.sample(_BATCH_S)
            except DeadlineExceeded:  # unrolls that it counted were lost, or are too old
                if deadline.left() <= 0:
                    raise

    def update_priorities(self, keys: npt.NDArray[np.uint64], priorities: npt.NDArray[Any]) -> None:
        self._replay.update_priorities(keys, priorities)

    def discard(self, keys: npt.NDArray[np.uint64], oldest: int) -> None:
        self._replay.discard(keys, oldest)

    def can_sample(self) -> bool:
        return self._replay.can_sample()

    def has_more(self) -> bool:
        return self._replay.has_more()


class RoundVariables:
    """A `VariableClient` whose version changes on request, at the next use."""

    def __init__(
        self,
        source: VariableSource,
        stop: threading.Event,
        clock: Callable[[], float] = time.monotonic,
    ):
        """Fetches the first parameters, waiting as long as `source` does.

        Args:
          source: where the parameters come from: a learner, or a relay of its parameters.
          stop: ends a wait.
          clock: the monotonic clock.
        """
        self._source, self._stop, self._clock = source, stop, clock
        self._requested = (0,)  # replaced as a whole: a request may come from another thread
        self._done: tuple[int, ...] | None = None
        self.version = -1
        self.params: Params = None
        self.update()

    def request_version(self, version: int) -> None:
        """Requests the version with which a round has begun; safe in any thread."""
        self._requested = (version,)

    def update(self) -> None:
        """Fetches the version that was requested last, unless it has been fetched.

        Takes another version if the learner has been restarted; the data of the round is then late.
        A newer version is that of an earlier life, which had come further than the round's. An
        older version, in an answer that is no older than the round, is that of the next life, which
        has resumed from a checkpoint.
        """
        requested = self._requested
        if requested is self._done:
            return
        with in_state(PARAMETER_WAIT):
            self._fetch(requested)
        self._done = requested

    def _fetch(self, requested: tuple[int, ...]) -> None:
        began = self._clock()
        while self.version != requested[0]:
            called = self._clock()
            answer = self._source.get_variables(self.version)
            if answer is not None:
                self.version, self.params = answer
            if self.version >= requested[0] or called - began > RELAY_S:
                break
            if self._stop.wait(_POLL_S):
                raise Stopped(f"waited for the parameters of {requested[0]} updates")


class RoundsClient(Protocol):
    """`CollectionRounds`, or a remote client of it."""

    def join(self, actor: int, after: int) -> tuple[int, int] | None: ...

    def offer(self, actor: int, life: int, number: int, unrolls: int) -> bool: ...

    def deliver(self, actor: int, life: int, number: int, unrolls: int) -> None: ...

    def leave(self, actor: int) -> None: ...


class RoundWriter(ReplayWriter):
    """An actor's writer: at the end of its unrolls it waits for the next round.

    The step that ends an unroll begins the next one. So it is inferred twice: with the parameters
    of the round that it ends, and with those of the round in which its action is executed.
    """

    def __init__(
        self,
        replay: UnrollingReplayBuffer,
        rounds: RoundsClient,
        *,
        unroll_length: int,
        actor: int,
        life: int,
        stop: threading.Event,
        timeout: float,
    ):
        """Args:
        replay: takes the steps.
        rounds: the rounds.
        unroll_length: transitions of an unroll.
        actor: index of the actor.
        life: the actor's life.
        stop: ends a wait.
        timeout: seconds to wait for a round.
        """
        self._replay, self._rounds = replay, rounds
        self._length, self._actor, self._life = unroll_length, actor, life
        self._stop, self._timeout = stop, timeout
        self._request_version: Callable[[int], None] | None = None
        self._number = -1
        self._steps = 0  # steps since the first unroll of the streams' life began
        self._streams_life = -1

    def needs_state(self, stream_ids: npt.NDArray[np.int32], life: int | None = None) -> bool:
        return self._replay.needs_state(stream_ids, life)

    def add(
        self,
        stream_ids: npt.NDArray[np.int32],
        timestep: TimeStep,
        inference: Inference,
        life: int = 0,
    ) -> None:
        if life != self._streams_life:
            self._steps, self._streams_life = 0, life
        self._steps += 1
        self._replay.add(stream_ids, timestep, inference, life)

    def flush(self) -> None:
        self._replay.flush()

    def begin(self, request_version: Callable[[int], None]) -> None:
        """Joins the first round, if it has not. Raises: see `end`.

        Args:
          request_version: requests a version of the parameters from the actor's inferencer.
        """
        if self._request_version is None:
            self._request_version = request_version
            self._join()

    def is_due(self, life: int) -> bool:
        """Returns whether the next step ends the round. Args: life: the streams' life."""
        return life == self._streams_life and self._steps == self._length

    def end(
        self,
        stream_ids: npt.NDArray[np.int32],
        timestep: TimeStep,
        inference: Inference,
        life: int,
    ) -> None:
        """Ends the round's unrolls with a step, delivers them, and joins the next round.

        The step is then to be inferred and added once more.

        Raises:
          Stopped: the program stops.
          DeadlineExceeded: no round has begun.
        """
        block = self._replay.cut(stream_ids, timestep, inference, life)
        assert block is not None
        if self._rounds.offer(self._actor, self._life, self._number, block.size):
            self._replay.insert(block)
            with in_state(REPLAY_WRITE):
                self._replay.flush()
            self._rounds.deliver(self._actor, self._life, self._number, block.size)
        self._replay.begin_again()
        self._steps = 0
        self._join()

    def leave(self) -> None:
        """Leaves the rounds, which then do not wait for this actor."""
        self._rounds.leave(self._actor)

    def _join(self) -> None:
        with in_state(PARAMETER_WAIT):
            self._wait_for_round()

    def _wait_for_round(self) -> None:
        deadline = Deadline(self._timeout)
        while True:
            joined = self._rounds.join(self._actor, self._number)
            if joined is not None:
                break
            if self._stop.is_set():
                raise Stopped(f"actor {self._actor} waits for a round")
            if deadline.left() <= 0:
                raise DeadlineExceeded(
                    f"actor {self._actor} waits for a round: {deadline.reason()}"
                )
            if deadline.line_due():
                deadline.tell(f"actor {self._actor} waits for a round")
        self._number, version = joined
        assert self._request_version is not None
        self._request_version(version)
