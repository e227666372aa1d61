"""Lockstep: actors and learner run concurrently on a fixed, reproducible schedule.

Counts alone determine which version of the parameters makes which experience, and the order in
which experience is stored and sampled, as in Cleanba (Huang et al. 2023, arXiv:2310.00036). So two
runs of an experiment learn the same parameters, whatever else the machine does.

The schedule consists of rounds. In round n every stream makes its n-th unroll, with parameters
learned from all rounds before n - 1; meanwhile the learner learns from round n - 1.
"""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from distrl.errors import ConfigError, DeadlineExceeded, Stopped
from distrl.replay.buffer import ReplayConfig, ReplayReader, ReplayWriter
from distrl.replay.table.info import TableInfo
from distrl.runtime.patience import Deadline
from distrl.runtime.time_account import PARAMETER_WAIT, in_state
from distrl.types import Inference, Params, Sample, TimeStep


class LockstepSchedule:
    """Computes the schedule from counts. Pure.

    Attributes:
      streams: streams of all actors; each makes an unroll per round.
    """

    def __init__(self, replay: ReplayConfig, batch_size: int, num_actors: int, num_envs: int):
        """Args:
        replay: the table's settings.
        batch_size: unrolls per update.
        num_actors: number of actors.
        num_envs: streams per actor.

        Raises:
          ConfigError: the table's settings do not determine its samples by its inserts.
        """
        self._replay = replay
        self._batch_size = batch_size
        self._num_actors = num_actors
        self._num_envs = num_envs
        self.streams = num_actors * num_envs
        if replay.table == "queue":
            return
        if replay.samples_per_insert is None:
            raise ConfigError(
                "lockstep needs a fixed number of samples per unroll. Set "
                "replay.samples_per_insert, or use replay.table=queue"
            )
        limits = replay.limits(batch_size)
        width = limits.max_diff - limits.samples_per_insert * limits.min_size_to_sample
        need = self.streams * replay.samples_per_insert + batch_size
        if width < need * (1 - 1e-9):  # as rounded
            raise ConfigError(
                f"lockstep: a round inserts {self.streams} unrolls at once, times "
                f"samples_per_insert={replay.samples_per_insert:g}, and a batch has {batch_size}: "
                f"replay.error_buffer={width:g} must be at least {need:g}"
            )

    def updates(self, rounds: int) -> int:
        """Returns how many updates the experience of the first `rounds` rounds is enough for."""
        inserts = max(0, rounds) * self.streams
        if self._replay.table == "queue":
            return inserts // self._batch_size
        ratio = self._replay.samples_per_insert or 0.0
        beyond = max(0, inserts - self._replay.min_size_to_sample)
        return int(beyond * ratio) // self._batch_size

    def rounds(self, update: int) -> int:
        """Returns how many rounds must be stored before an update (from 0) may sample."""
        low, high = 0, 1
        while self.updates(high) <= update:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.updates(middle) <= update else (low, middle)
        return high

    def version(self, round_index: int) -> int:
        """Returns the version of the parameters that act in a round (from 0)."""
        return self.updates(round_index - 1)

    def inserts(self, actor: int, round_index: int) -> int:
        """Returns how many unrolls the table has received when an actor inserts a round's."""
        return (round_index * self._num_actors + actor) * self._num_envs

    def samples(self, round_index: int) -> int:
        """Returns how many unrolls must have been sampled before a round's are inserted."""
        return 0 if self._replay.table == "queue" else self.updates(round_index) * self._batch_size

    @property
    def versions_kept(self) -> int:
        """The number of newest versions that actors may still request: those of two rounds."""
        ratio = self._replay.samples_per_insert or 1.0
        return 2 * (int(self.streams * ratio) // self._batch_size + 1) + 2


class VersionSource(Protocol):
    """A source of parameters by number of updates."""

    def get_variables_at(self, number: int) -> tuple[int, Params] | None:
        """Returns the version and the parameters after `number` updates of this program.

        Waits for a limited time; returns None if there are none yet.
        """


class LockstepVariables:
    """A `VariableClient` on the schedule: it changes the version once per round."""

    def __init__(
        self,
        source: VersionSource,
        schedule: LockstepSchedule,
        calls_per_round: int,
        stop: Any,
        timeout: float,
    ):
        """Args:
        source: gives the parameters.
        schedule: says which version acts in which round.
        calls_per_round: calls of `update` per round, one per step of the actor's streams.
        stop: event that ends a wait.
        timeout: seconds to wait for a version.
        """
        self._source = source
        self._schedule = schedule
        self._calls_per_round = calls_per_round
        self._stop = stop
        self._timeout = timeout
        self._calls = 0
        self._number = -1
        self.version = -1
        self.params: Params = None
        self._fetch(0)

    def update(self) -> None:
        """Counts one use of the parameters."""
        round_index, rest = divmod(self._calls, self._calls_per_round)
        self._calls += 1
        if rest == 0:
            self._fetch(self._schedule.version(round_index))

    def _fetch(self, number: int) -> None:
        with in_state(PARAMETER_WAIT):
            self._wait_for(number)

    def _wait_for(self, number: int) -> None:
        deadline = Deadline(self._timeout)
        while self._number != number:
            answer = self._source.get_variables_at(number)
            if answer is not None:
                self._number = number
                self.version, self.params = answer
            elif self._stop.is_set():
                raise Stopped(f"waited for the parameters of {number} updates")
            elif deadline.left() <= 0:
                raise DeadlineExceeded(
                    f"lockstep: waited for {number} updates: {deadline.reason()}"
                )


class CountedReplay(Protocol):
    """A replay client that can wait for the table's counts."""

    def wait_for_counts(
        self, done: Callable[[int, int], bool], what: str, timeout: float | None = None
    ) -> None:
        """Waits until `done(inserts, samples)`. Raises: see `ReplayWriter.add`."""

    def info(self) -> TableInfo:
        """See `ReplayAdministration.info`."""


class LockstepWriter(ReplayWriter):
    """An actor's writer that inserts when the schedule says so."""

    def __init__(
        self,
        replay: Any,
        schedule: LockstepSchedule,
        unroll_length: int,
        actor: int,
    ):
        """Args:
        replay: a ReplayWriter that is a CountedReplay.
        schedule: says when to insert.
        unroll_length: transitions per unroll.
        actor: index of the actor that writes.
        """
        self._replay: ReplayWriter = replay
        self._counted: CountedReplay = replay
        self._schedule = schedule
        self._length = unroll_length
        self._actor = actor
        self._steps = 0

    @property
    def rounds(self) -> int:
        """Number of rounds whose unrolls of this actor are in the table."""
        return max(0, self._steps - 1) // self._length

    def needs_state(self, stream_ids: npt.NDArray[np.int32], life: int | None = None) -> bool:
        return self._replay.needs_state(stream_ids, life)

    def add(
        self,
        stream_ids: npt.NDArray[np.int32],
        timestep: TimeStep,
        inference: Inference,
        life: int = 0,
    ) -> None:
        round_index, rest = divmod(self._steps, self._length)
        self._steps += 1
        if rest == 0 and round_index:  # this step ends an unroll of each stream
            inserts = self._schedule.inserts(self._actor, round_index - 1)
            samples = self._schedule.samples(round_index - 1)
            self._counted.wait_for_counts(
                lambda now, sampled: now == inserts and sampled >= samples,
                f"actor {self._actor} waits for its turn after {inserts} inserts",
            )
        self._replay.add(stream_ids, timestep, inference, life)

    def flush(self) -> None:
        self._replay.flush()


class LockstepReader(ReplayReader):
    """A learner's reader that samples when the schedule says so."""

    def __init__(self, replay: Any, schedule: LockstepSchedule):
        """Args:
        replay: a ReplayReader that is a CountedReplay.
        schedule: says when to sample.
        """
        self._replay: ReplayReader = replay
        self._counted: CountedReplay = replay
        self._schedule = schedule
        self._updates = 0
        self._last_round: int | None = None
        self._priorities: list[tuple[npt.NDArray[np.uint64], npt.NDArray[Any]]] = []

    def end_after(self, rounds: int) -> None:
        """Limits the batches to this number of rounds: the actors complete no more."""
        self._last_round = rounds

    def has_more(self) -> bool:
        return self._last_round is None or self._schedule.rounds(self._updates) <= self._last_round

    @property
    def is_prioritized(self) -> bool:
        return self._replay.is_prioritized

    @property
    def _inserts(self) -> int:
        """The number of inserts after which the next batch is sampled."""
        return self._schedule.rounds(self._updates) * self._schedule.streams

    def sample(self, timeout: float | None) -> Sample:
        inserts = self._inserts
        self._counted.wait_for_counts(
            lambda now, sampled: now >= inserts, f"the learner waits for {inserts} inserts", timeout
        )
        # Not when they arrive: actors may be inserting then, with the largest priority of all.
        for update in self._priorities:
            self._replay.update_priorities(*update)
        self._priorities.clear()
        sample = self._replay.sample(timeout)
        self._updates += 1
        return sample

    def update_priorities(self, keys: npt.NDArray[np.uint64], priorities: npt.NDArray[Any]) -> None:
        """See `ReplayReader`; takes effect right before the next sample."""
        self._priorities.append((keys, priorities))

    def discard(self, keys: npt.NDArray[np.uint64], oldest: int) -> None:
        self._replay.discard(keys, oldest)

    def can_sample(self) -> bool:
        return self._counted.info().inserts >= self._inserts and self._replay.can_sample()
