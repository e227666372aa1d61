"""The replay's interface and its settings. Reverb's words have Reverb's meaning."""

import abc
import dataclasses
import difflib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from distrl.errors import ConfigError
from distrl.replay.table.experience import Experience
from distrl.replay.table.info import RateLimits, TableInfo
from distrl.replay.table.sampler import Sampler
from distrl.types import TIME_FIELDS, Inference, Sample, TimeStep, Trajectory

TABLES = ("queue", "uniform", "prioritized")
BACKENDS = ("auto", "shared_memory", "reverb")


@dataclasses.dataclass(frozen=True)
class ReplayConfig:
    """How experience reaches the learner. Sizes are counted in unrolls.

    Attributes:
      table: "queue" (each unroll once, in order; inserts wait while it is full), "uniform" or
        "prioritized" (sampled with replacement; the oldest is removed when it is full).
      unroll_length: transitions of an unroll, T; it has T + 1 steps.
      max_size: unrolls that the table holds.
      min_size_to_sample: samples wait until it holds as many. Not for a queue.
      samples_per_insert: how often an unroll is sampled on average; inserts and samples wait for
        each other to keep it. None: they do not. Not for a queue.
      error_buffer: how far `inserts * samples_per_insert - samples` may stray to either side
        before one of them waits. None: a tenth of `min_size_to_sample * samples_per_insert`, and
        no less than a batch needs.
      priority_exponent: an unroll is sampled with probability proportional to
        `priority ** priority_exponent` (Schaul et al. 2016, arXiv:1511.05952).
      initial_priority: of a new unroll.
      sampler: of your own, in the place of `uniform` or `prioritized`: a
        `distrl.replay.table.sampler.Sampler`. Not for a queue or a Reverb server.
      backend: where a program of several nodes has the table: "shared_memory" of the machine they
        are all on, or a "reverb" server; "auto": shared memory. One process needs neither.
      period: steps between the starts of two unrolls of a stream, from 1 to `unroll_length`; with
        fewer than that unrolls overlap, and there are more of them. None: `unroll_length`. Not for
        a queue.
      num_shards: Reverb servers that the table is split over, each with the streams of whole actors
        and an even part of all sizes: see `of_shard`. For backend "reverb"; one process has one.
    """

    table: str = "queue"
    unroll_length: int = 20
    max_size: int = 128
    min_size_to_sample: int = 1
    samples_per_insert: float | None = None
    error_buffer: float | None = None
    priority_exponent: float = 0.6
    initial_priority: float = 1.0
    backend: str = "auto"
    period: int | None = None
    sampler: Sampler | None = None
    num_shards: int = 1

    def __post_init__(self) -> None:
        for name, choices in (("table", TABLES), ("backend", BACKENDS)):
            value = getattr(self, name)
            if value not in choices:
                near = difflib.get_close_matches(str(value), choices, n=1)
                hint = (
                    f"did you mean {near[0]!r}?" if near else f"it is one of {', '.join(choices)}"
                )
                raise ConfigError(f"replay.{name}: no {value!r}; {hint}")
        for name in ("unroll_length", "max_size", "min_size_to_sample", "num_shards"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"replay.{name} must be a whole number, 1 or more; got {value!r}")
        self._check_shards()
        self._check_period()
        for name in ("priority_exponent", "initial_priority"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ConfigError(f"replay.{name} must be finite and 0 or more; got {value!r}")
        if self.min_size_to_sample > self.max_size:
            raise ConfigError(
                f"replay.min_size_to_sample={self.min_size_to_sample} is more than "
                f"replay.max_size={self.max_size}: the table could never be sampled"
            )
        if self.sampler is not None and not callable(getattr(self.sampler, "choose", None)):
            raise ConfigError(
                f"replay.sampler must have a method choose(rng, count, view); got {self.sampler!r}"
            )
        if self.table == "queue":
            self._check_queue()
        elif self.samples_per_insert is not None:
            self._check_ratio(self.samples_per_insert)
        elif self.error_buffer is not None:
            raise ConfigError(
                f"replay.error_buffer={self.error_buffer} needs replay.samples_per_insert"
            )

    def _check_shards(self) -> None:
        count, size = self.num_shards, self.max_size
        if count == 1:
            return
        if self.backend != "reverb":
            raise ConfigError(
                f"replay.num_shards={count}: shards are Reverb servers, which replay.backend="
                f"{self.backend} does not have; take replay.backend=reverb"
            )
        whole, rest = divmod(size, count)
        if rest:
            near = f"{size - rest} or {size - rest + count}" if whole else f"{count}"
            raise ConfigError(
                f"replay.max_size={size} cannot be split over replay.num_shards={count}: it is "
                f"{count} * {whole} + {rest}; take {near}"
            )

    def _check_period(self) -> None:
        period, most = self.period, self.unroll_length
        if period is None:
            return
        if isinstance(period, bool) or not isinstance(period, int) or not 1 <= period <= most:
            raise ConfigError(
                f"replay.period must be a whole number from 1 to replay.unroll_length={most}, or "
                f"None; got {period!r}"
            )
        if self.table == "queue":
            raise ConfigError(
                f"replay.period={period} is not for a queue, whose learner is to see each step "
                "once; leave it None, or take replay.table=uniform"
            )

    def _check_queue(self) -> None:
        """A queue hands out each unroll once: nothing else limits its rates."""
        for name, neutral in (
            ("min_size_to_sample", 1), ("samples_per_insert", None), ("error_buffer", None),
            ("sampler", None),
        ):  # fmt: skip
            if getattr(self, name) != neutral:
                raise ConfigError(
                    f"replay.{name}={getattr(self, name)} is not for a queue, which hands out "
                    f"each unroll once; leave it {neutral}, or take replay.table=uniform"
                )

    def _check_ratio(self, ratio: float) -> None:
        if not (math.isfinite(ratio) and ratio > 0):
            raise ConfigError(f"replay.samples_per_insert must be positive; got {ratio!r}")
        # Reverb: max_diff - min_diff must be 2 * max(1, samples_per_insert), or both may block.
        least = max(1.0, ratio)
        if self.error_buffer is not None and not self.error_buffer >= least:
            raise ConfigError(
                f"replay.error_buffer={self.error_buffer} must be at least "
                f"max(1, samples_per_insert) = {least:g}; less could block inserts and samples"
            )

    @property
    def sampling(self) -> str:
        """How unrolls are chosen, in words."""
        if self.sampler is not None:
            return type(self.sampler).__name__
        if self.table == "prioritized":
            return f"prioritized, exponent {self.priority_exponent:g}"
        return "in order" if self.table == "queue" else self.table

    def of_shard(self) -> "ReplayConfig":
        """Of each of the tables that this one is split over.

        `max_size` and `error_buffer` are divided, and `min_size_to_sample` too, rounded up; the
        ratio is the same. So the limits of all shards together are those of one table: where
        `min_size_to_sample` can be divided, `inserts * samples_per_insert - samples` of all stays
        within the same bounds.

        Raises:
          ConfigError: what is left for a shard cannot work.
        """
        count, error = self.num_shards, self.error_buffer
        if count == 1:
            return self
        try:
            return dataclasses.replace(
                self,
                num_shards=1,
                max_size=self.max_size // count,
                min_size_to_sample=math.ceil(self.min_size_to_sample / count),
                error_buffer=None if error is None else error / count,
            )
        except ConfigError as refused:
            raise ConfigError(f"replay.num_shards={count}: of each shard: {refused}") from None

    def limits(self, batch_size: int) -> RateLimits:
        """The rate limiter of a uniform or prioritized table, for samples of `batch_size`.

        The arithmetic of `reverb.rate_limiters.MinSize` and `.SampleToInsertRatio`.
        """
        if self.samples_per_insert is None:
            return RateLimits(1.0, self.min_size_to_sample, -math.inf, math.inf)
        ratio = float(self.samples_per_insert)
        offset = ratio * self.min_size_to_sample
        error = self.error_buffer
        if error is None:
            error = max(0.1 * offset, batch_size * max(1.0, ratio))
        return RateLimits(ratio, self.min_size_to_sample, offset - error, offset + error)

    def check(self, batch_size: int, streams: int = 1) -> None:
        """Refuses what could never move, or would stop moving.

        Args:
          batch_size: unrolls of a sample.
          streams: unrolls that one `add` may finish while nobody samples: in a program of one
            thread, its streams; 1 where actors and learner do not wait for each other.

        Raises:
          ConfigError: with the arithmetic.
        """
        if batch_size < 1:
            raise ConfigError(f"batch_size must be 1 or more; got {batch_size}")
        if self.table == "queue":
            if self.max_size < batch_size:
                raise ConfigError(
                    f"replay.max_size={self.max_size} unrolls can never hold a batch of "
                    f"{batch_size}: replay.max_size must be at least {batch_size}"
                )
            need = batch_size - 1 + streams
            if self.max_size < need:
                raise ConfigError(
                    f"replay.max_size={self.max_size} would stall: {batch_size - 1} unrolls, one "
                    f"short of a batch, and {streams} that one step of {streams} streams may "
                    f"finish, are {need}: replay.max_size must be at least that"
                )
        elif self.samples_per_insert is not None:
            limits = self.limits(batch_size)
            width = limits.max_diff - limits.min_diff
            ratio, start = limits.samples_per_insert, self.min_size_to_sample
            # At rest between two adds: one batch short of a sample, or one unroll of the start.
            least = max((batch_size + ratio * streams) / 2, (streams - 1) * ratio)
            if width / 2 < least * (1 - 1e-9):  # it may be the default, rounded
                raise ConfigError(
                    f"replay.error_buffer={width / 2:g} would stall: inserts wait above "
                    f"{limits.max_diff:g}, samples below {limits.min_diff:g} + {batch_size} and "
                    f"below {start} unrolls; with {streams} unrolls that one step of {streams} "
                    f"streams may finish, times samples_per_insert={ratio:g}, the buffer must be "
                    f"at least {least:g}"
                )
        if self.num_shards > 1:
            shard = self.of_shard()
            try:
                shard.check(math.ceil(batch_size / self.num_shards))
            except ConfigError as refused:
                count = self.num_shards
                raise ConfigError(f"replay.num_shards={count}: of each shard: {refused}") from None

    def nbytes(self, struct: Trajectory) -> int:
        """Memory of the full table in bytes, without the store's own overhead.

        Args:
          struct: of one stream at one step, from `distrl.specs.trajectory_struct`.
        """
        total = 0
        for field, nest in zip(struct._fields, struct, strict=True):
            rows = self.unroll_length + 1 if field in TIME_FIELDS else 1
            for leaf in jax.tree.leaves(nest):
                total += rows * math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize
        return total * self.max_size


class ReplayBuffer(abc.ABC):
    """One client of a table: an actor's, which adds, or a learner's, which samples.

    An actor's client cuts the steps of its own streams into unrolls. Not thread safe: one thread
    adds and one samples, which may be two.
    """

    @property
    @abc.abstractmethod
    def is_prioritized(self) -> bool:
        """Whether the table samples by priority, now: only then are new ones of use."""

    @abc.abstractmethod
    def needs_state(self, stream_ids: np.ndarray, life: int | None = None) -> bool:
        """True where the next step of one of these streams begins an unroll.

        The actor then asks the inferencer for the agent's state before that step. Always False
        for an agent without state.

        Args:
          stream_ids: int32 `[B]`.
          life: that the next `add` will give; None: the one before.
        """

    @abc.abstractmethod
    def add(
        self, stream_ids: np.ndarray, timestep: TimeStep, inference: Inference, life: int = 0
    ) -> None:
        """Takes a step of some streams, and what was done in it. Inserts the unrolls it finishes.

        Args:
          stream_ids: int32 `[B]`, each at most once. Fast where every call has the same ones.
          timestep: `[B, ...]`.
          inference: `[B, ...]`; with `state` where `needs_state` was True.
          life: of these streams. One that differs from a stream's last begins a new unroll.

        Raises:
          SpecError: a value breaks its spec.
          Stopped: the program stops, and the table takes no more.
          DeadlineExceeded: the table took nothing for long.
        """

    @abc.abstractmethod
    def flush(self) -> None:
        """Waits until all that was added and finished an item is in the table.

        Raises:
          Stopped, DeadlineExceeded: as `add`.
        """

    @abc.abstractmethod
    def sample(self, timeout: float | None) -> Sample:
        """A batch of unrolls `[T + 1, batch_size, ...]`.

        Args:
          timeout: seconds; None: as long as the program runs and the table lives.

        Raises:
          DeadlineExceeded: there was none in time; the message has the table's counts.
          Stopped: the program stops.
        """

    def make_dataset(self, timeout: float | None) -> Iterator[Sample]:
        """Samples without end; raises as `sample` does, with its timeout for each."""
        while True:
            yield self.sample(timeout)

    @abc.abstractmethod
    def update_priorities(self, keys: np.ndarray, priorities: np.ndarray) -> None:
        """Sets priorities of unrolls in a prioritized table; without effect in others.

        Args:
          keys: uint64 `[B]`, from samples. Those of unrolls that were removed are passed over.
          priorities: `[B]`, finite and 0 or more.

        Raises:
          ValueError: the arrays differ in shape, or a priority is negative or not finite.
        """

    @abc.abstractmethod
    def can_sample(self) -> bool:
        """True where `sample` would not wait."""

    @abc.abstractmethod
    def reconfigure(self, **changes: object) -> TableInfo:
        """Changes settings of the table while it is used, for all its clients.

        Args:
          **changes: of `ReplayConfig`: see `distrl.replay.table.reconfigure.CHANGEABLE`.

        Returns:
          how the table stands afterwards.

        Raises:
          ConfigError: they could stall, or cannot be changed; nothing was.
        """

    @property
    @abc.abstractmethod
    def experience(self) -> Experience:
        """What the table holds, as a list: to look at, and to fill before training.

        Raises:
          ConfigError: it is in a Reverb server, which gives unrolls as samples only.
        """

    @abc.abstractmethod
    def info(self) -> TableInfo:
        """How the table stands."""

    @abc.abstractmethod
    def save(self, folder: Path, timeout: float) -> dict[str, Any]:
        """Writes the table to `folder`, which it makes, as it stands when it is called.

        The table goes on meanwhile; what it removes before it is copied is left out. Safe in
        another thread than the others' calls.

        Args:
          folder: in a folder that is there.
          timeout: seconds that a server may take.

        Returns:
          "size", "inserts" and "samples" of what was written, for a manifest.

        Raises:
          OSError: the disk is full, say.
          DeadlineExceeded: the server was not done in time.
          PeerError: it failed.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Ends this client. What is finished but not in the table is lost: `flush` first."""


def checked_priorities(keys: np.ndarray, priorities: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`keys` as uint64 and `priorities` as float64, both `[B]`.

    Raises:
      ValueError: see `ReplayBuffer.update_priorities`.
    """
    keys = np.asarray(keys, np.uint64)
    priorities = np.asarray(priorities, np.float64)
    if keys.ndim != 1 or keys.shape != priorities.shape:
        raise ValueError(
            f"update_priorities: keys {list(keys.shape)} and priorities "
            f"{list(priorities.shape)} must be two vectors of one length"
        )
    bad = ~(np.isfinite(priorities) & (priorities >= 0))
    if bad.any():
        raise ValueError(
            f"update_priorities: priority {priorities[bad][0]} of key {keys[bad][0]} must be "
            "finite and 0 or more"
        )
    return keys, priorities
