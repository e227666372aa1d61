"""The interfaces of a replay client, by who uses them: the actor, the learner, the administration.

A client of a table in this process or in shared memory also has `reconfigure` and `experience`: see
`distrl.replay.client.TableReplayBuffer`.
"""

import abc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from distrl.errors import SpecError
from distrl.replay.columns import Columns
from distrl.replay.config import ReplayConfig as ReplayConfig  # documented under this name, too
from distrl.replay.insert_priorities import are_priorities
from distrl.replay.table.info import TableInfo
from distrl.types import Inference, Sample, TimeStep


class ReplayWriter(abc.ABC):
    """The actor's interface: cuts the steps of its streams into unrolls and inserts them.

    Not thread safe: one thread adds.
    """

    @abc.abstractmethod
    def needs_state(self, stream_ids: npt.NDArray[np.int32], life: int | None = None) -> bool:
        """Returns whether the next step of one of these streams begins an unroll.

        The actor then asks the inferencer for the agent's state before that step. Always False
        for an agent without state.

        Args:
          stream_ids: int32 `[B]`.
          life: the life that the next `add` will pass; None: same as before.
        """

    @abc.abstractmethod
    def add(
        self,
        stream_ids: npt.NDArray[np.int32],
        timestep: TimeStep,
        inference: Inference,
        life: int = 0,
    ) -> None:
        """Takes one step of some streams with its inference; inserts the unrolls it completes.

        Args:
          stream_ids: int32 `[B]`, without duplicates. Fast if every call has the same ones.
          timestep: `[B, ...]`.
          inference: `[B, ...]`; with `state` where `needs_state` was True.
          life: the streams' life. A stream whose life changes begins a new unroll.

        Raises:
          SpecError: a value breaks its spec.
          Stopped: the program is stopping and the table takes no more.
          DeadlineExceeded: the table had no room in time.
        """

    def release(self) -> bool:
        """Takes one more step of each stream that holds steps back though nothing can change them.

        It completes at most one unroll of a stream, as `add` does; `flush` takes all such steps.

        Returns:
          Whether a stream had one.
        """
        return False

    @abc.abstractmethod
    def flush(self) -> None:
        """Waits until every unroll that was completed is in the table.

        Unrolls that wait in the client until they fill an item of a Reverb queue stay there.

        Raises:
          Stopped, DeadlineExceeded: as `add`.
        """


class Dataset(Iterator[Sample]):
    """Samples without end, each with a deadline; after an error the next call tries again."""

    def __init__(self, sample: Callable[[float | None], Sample], timeout: float | None):
        """Args:
        sample: `ReplayReader.sample`.
        timeout: seconds for each sample; None: no limit.
        """
        self._sample = sample
        self._timeout = timeout

    def __next__(self) -> Sample:
        return self._sample(self._timeout)


class ReplayReader(abc.ABC):
    """The learner's interface. Not thread safe: one thread samples.

    Attributes:
      packs: columns of `Sample.packed`; None: samples do not have it.
    """

    packs: Columns | None = None

    @property
    @abc.abstractmethod
    def is_prioritized(self) -> bool:
        """Whether the table currently samples by priority, so that updates have an effect."""

    @abc.abstractmethod
    def sample(self, timeout: float | None) -> Sample:
        """Returns a batch of unrolls `[T + 1, batch_size, ...]`.

        Args:
          timeout: seconds; None: no limit while the program runs and the table exists.

        Raises:
          DeadlineExceeded: there was no batch in time; the message has the table's counts.
          Stopped: the program is stopping.
        """

    def make_dataset(self, timeout: float | None) -> Iterator[Sample]:
        """Returns an endless iterator of batches.

        Args:
          timeout: seconds for each batch; raises as `sample`.
        """
        return Dataset(self.sample, timeout)

    @abc.abstractmethod
    def update_priorities(self, keys: npt.NDArray[np.uint64], priorities: npt.NDArray[Any]) -> None:
        """Sets priorities of unrolls in a prioritized table; no effect on others.

        Args:
          keys: uint64 `[B]`, from samples. Keys of removed unrolls are ignored.
          priorities: `[B]`, finite as float32, and 0 or more.

        Raises:
          SpecError: the arrays differ in shape, or a priority is negative or not finite.
        """

    @abc.abstractmethod
    def discard(self, keys: npt.NDArray[np.uint64], oldest: int) -> None:
        """Removes unrolls that are no longer learned from, from a table with sampling.

        A table in this process or in shared memory removes its oldest unrolls as long as they have
        an action that was chosen before version `oldest`; of those that remain, a prioritized one
        never samples the given ones again. A Reverb server removes the given ones. If the table
        is then smaller than `min_size_to_sample`, it is filled up like a new one.

        Args:
          keys: uint64 `[n]`, from samples; those of removed unrolls are ignored.
          oldest: version of the parameters.
        """

    @abc.abstractmethod
    def can_sample(self) -> bool:
        """Returns whether `sample` would return without waiting."""

    @abc.abstractmethod
    def has_more(self) -> bool:
        """Returns whether there is another batch even if nothing more is inserted.

        False without a ratio of samples to inserts, which would allow any number.
        """


class ReplayAdministration(abc.ABC):
    """The interface of the checkpointer, the monitor, and the code that opened the client."""

    @abc.abstractmethod
    def info(self) -> TableInfo:
        """Returns the table's counts and limits."""

    @abc.abstractmethod
    def save(self, folder: Path, timeout: float) -> dict[str, Any]:
        """Creates `folder` and writes to it the table as it is at the time of the call.

        The table stays in use meanwhile; unrolls removed before they are copied are left out.
        Safe in another thread than the other methods' callers.

        Args:
          folder: a path whose parent exists.
          timeout: seconds that a server may take.

        Returns:
          "size", "inserts" and "samples" of what was written, for a manifest.

        Raises:
          OSError: writing failed, e.g. the disk is full.
          DeadlineExceeded: the server did not finish in time.
          PeerError: the server failed.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Closes this client. Unrolls that are not in the table yet are lost: `flush` first."""


class ReplayBuffer(ReplayWriter, ReplayReader, ReplayAdministration):
    """A client with which one table is written, read and administered.

    One thread may write and another read.
    """


def checked_priorities(
    keys: npt.NDArray[np.uint64], priorities: npt.NDArray[Any]
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Returns `keys` as uint64 and `priorities` as float64, both `[B]`.

    Raises:
      SpecError: see `ReplayReader.update_priorities`.
    """
    keys = np.asarray(keys, np.uint64)
    priorities = np.asarray(priorities, np.float64)
    if keys.ndim != 1 or keys.shape != priorities.shape:
        raise SpecError(
            f"update_priorities: keys {list(keys.shape)} and priorities "
            f"{list(priorities.shape)} must be two vectors of one length"
        )
    bad = ~are_priorities(priorities)
    if bad.any():
        raise SpecError(
            f"update_priorities: priority {priorities[bad][0]:g} of key {keys[bad][0]} must be "
            "finite as a float32, and 0 or more; an agent's log 'priorities' has the size of each "
            "unroll's error, not its sign"
        )
    return keys, priorities
