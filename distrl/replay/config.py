"""Replay settings, their checks and the rate limits they imply. Reverb's terms keep its meaning."""

import dataclasses
import math
from typing import Any, ClassVar, NamedTuple

import jax
import numpy as np

from distrl.errors import ConfigError
from distrl.field_checks import (
    check_choice,
    check_flag,
    check_whole,
    is_number,
    is_whole,
    plain_numbers,
)
from distrl.replay.insert_priorities import MAX_EXPONENT, MAX_PRIORITY, PriorityOf
from distrl.replay.sampler import Sampler
from distrl.types import TIME_FIELDS, Trajectory

TABLES = ("queue", "uniform", "prioritized")
BACKENDS = ("auto", "shared_memory", "served", "reverb")


class RateLimits(NamedTuple):
    """Bounds on `inserts * samples_per_insert - samples`, as in `reverb.rate_limiters`."""

    samples_per_insert: float
    min_size_to_sample: int
    min_diff: float
    max_diff: float


@dataclasses.dataclass(frozen=True)
class ReplayConfig:
    """Settings of the replay. Sizes are counted in unrolls.

    Attributes:
      table: "queue" (each unroll is sampled once, in order; inserts block while it is full),
        "uniform" or "prioritized" (sampled with replacement; when full, the oldest is removed).
      unroll_length: transitions per unroll, T; an unroll has T + 1 steps.
      max_size: capacity of the table in unrolls.
      min_size_to_sample: sampling blocks until the table holds this many unrolls. Not for a queue.
      samples_per_insert: how often an unroll is sampled on average; inserts and samples block to
        maintain the ratio. None: no rate limit. Not for a queue.
      error_buffer: how far `inserts * samples_per_insert - samples` may deviate to either side
        before one of them blocks. None: a tenth of `min_size_to_sample * samples_per_insert`, but
        at least what a batch needs.
      priority_exponent: an unroll is sampled with probability proportional to
        `priority ** priority_exponent` (Schaul et al. 2016, arXiv:1511.05952); at most 4.
      initial_priority: priority of new unrolls until an update has set a larger one; then they get
        the largest so far (Schaul et al. 2016; on Reverb servers, a second later at most).
      sampler: custom sampler instead of `uniform` or `prioritized`, a
        `distrl.replay.sampler.Sampler`. Not for a queue or a Reverb server.
      backend: where a program of several nodes keeps the table: "shared_memory", of the one machine
        that they run on; "served", the same, and served to other machines; "reverb", a Reverb
        server; "auto": shared memory, or over several machines what the substrate has. A single
        process has its table in itself.
      period: steps between the starts of consecutive unrolls of a stream, from 1 to
        `unroll_length`; unrolls overlap if it is less than that. None: `unroll_length`. Not for a
        queue.
      num_shards: servers that the table is split over. Each stores the streams of some of the
        actors, and has an equal part of all sizes: see `of_shard`. For backends "served" and
        "reverb"; a single process has one.
      strict_ratio: with `samples_per_insert`, the learner is never ahead of the ratio: a batch
        waits for its inserts. The first comes as soon as the table may be sampled.
      whole_episodes: an unroll is one whole episode of at most `unroll_length` transitions, of
        which an algorithm such as REINFORCE learns. A longer one is an error. For a queue.
      priority_of: function from new unrolls, a Trajectory `[T + 1, n, ...]` of NumPy arrays, to
        their priorities `[n]`, 0 or more, which they keep: the learner's errors do not replace
        them. Called where they are cut. Must be picklable. For a prioritized table.
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
    whole_episodes: bool = False
    priority_of: PriorityOf | None = None
    strict_ratio: bool = False

    BEFORE: ClassVar[dict[str, Any]] = {"strict_ratio": False}

    def __post_init__(self) -> None:
        plain_numbers(self)
        for name, choices in (("table", TABLES), ("backend", BACKENDS)):
            check_choice(self, name, choices, "replay")
        for name in ("unroll_length", "max_size", "min_size_to_sample", "num_shards"):
            check_whole(self, name, "replay")
        for name in ("whole_episodes", "strict_ratio"):
            check_flag(self, name, "replay")
        self._check_shards()
        self._check_period()
        for name, most in (("priority_exponent", MAX_EXPONENT), ("initial_priority", MAX_PRIORITY)):
            value = getattr(self, name)
            if not (is_number(value) and 0 <= value <= most):
                raise ConfigError(f"replay.{name} must be from 0 to {most:.3g}; got {value!r}")
        if self.min_size_to_sample > self.max_size:
            raise ConfigError(
                f"replay.min_size_to_sample={self.min_size_to_sample} is more than "
                f"replay.max_size={self.max_size}: the table could never be sampled"
            )
        if self.sampler is not None and not callable(getattr(self.sampler, "choose", None)):
            raise ConfigError(
                f"replay.sampler must have a method choose(rng, count, view); got {self.sampler!r}"
            )
        if self.sampler is not None and self.backend == "reverb":
            raise ConfigError(
                f"replay.sampler={type(self.sampler).__name__} is not for a Reverb server, which "
                "has only its own; use replay.backend=served, or on one machine shared_memory"
            )
        if self.priority_of is not None and not callable(self.priority_of):
            raise ConfigError(
                "replay.priority_of must be a function of unrolls, or None; got "
                f"{self.priority_of!r}"
            )
        if self.priority_of is not None and self.table != "prioritized":
            raise ConfigError(
                "replay.priority_of is for sampling by priority, not for replay.table="
                f"{self.table}; use replay.table=prioritized"
            )
        if self.whole_episodes and self.table != "queue":
            raise ConfigError(
                f"replay.whole_episodes is for a queue, not for replay.table={self.table}; use "
                "replay.table=queue"
            )
        if self.table == "queue":
            self._check_queue()
        elif self.samples_per_insert is not None:
            self._check_ratio(self.samples_per_insert)
        else:
            for name, neutral in (("error_buffer", None), ("strict_ratio", False)):
                if (value := getattr(self, name)) != neutral:
                    raise ConfigError(
                        f"replay.{name}={value} needs replay.samples_per_insert; set that, or "
                        f"replay.{name}={neutral}, too, for no limit"
                    )

    def _check_shards(self) -> None:
        count, size = self.num_shards, self.max_size
        if count == 1:
            return
        if self.backend not in ("served", "reverb"):
            raise ConfigError(
                f"replay.num_shards={count}: shards are servers, which replay.backend="
                f"{self.backend} does not have; use replay.backend=served or reverb"
            )
        quotient, rest = divmod(size, count)
        if rest:
            near = f"{size - rest} or {size - rest + count}" if quotient else f"{count}"
            raise ConfigError(
                f"replay.max_size={size} cannot be split over replay.num_shards={count}: it is "
                f"{count} * {quotient} + {rest}; use {near}"
            )

    def _check_period(self) -> None:
        period, longest = self.period, self.unroll_length
        if period is None:
            return
        if not (is_whole(period) and period <= longest):
            raise ConfigError(
                f"replay.period must be a whole number from 1 to replay.unroll_length={longest}, "
                f"or None; got {period!r}"
            )
        if self.table == "queue":
            raise ConfigError(
                f"replay.period={period} is not for a queue, whose learner must see each step "
                "once; leave it None, or use replay.table=uniform"
            )

    def _check_queue(self) -> None:
        """Refuses what is for sampling: a queue hands out each unroll once, in order."""
        for name in (
            "min_size_to_sample", "samples_per_insert", "error_buffer", "strict_ratio", "sampler",
            "priority_exponent", "initial_priority",
        ):  # fmt: skip
            value, neutral = getattr(self, name), getattr(ReplayConfig, name)
            if value != neutral:
                raise ConfigError(
                    f"replay.{name}={value} is not for a queue, which hands out each unroll once; "
                    f"leave it {neutral}, or use replay.table=uniform"
                )

    def _check_ratio(self, ratio: float) -> None:
        if not (is_number(ratio) and ratio > 0):
            raise ConfigError(f"replay.samples_per_insert must be positive; got {ratio!r}")
        # Reverb: max_diff - min_diff must be 2 * max(1, samples_per_insert), or both may block.
        least, error = max(1.0, ratio), self.error_buffer
        if error is not None and not (is_number(error, infinite=True) and error >= least):
            raise ConfigError(
                f"replay.error_buffer={error} must be at least "
                f"max(1, samples_per_insert) = {least:g}; less could block inserts and samples"
            )

    @property
    def sampling(self) -> str:
        """A description of how unrolls are chosen."""
        if self.sampler is not None:
            return type(self.sampler).__name__
        if self.table == "prioritized":
            return f"prioritized, exponent {self.priority_exponent:g}"
        return "in order" if self.table == "queue" else self.table

    def of_shard(self) -> "ReplayConfig":
        """Returns the settings of one shard's table.

        `max_size`, `error_buffer` and `min_size_to_sample` (rounded up) are divided by the number
        of shards; the ratio stays. So the limits of all shards together are those of one table:
        where `min_size_to_sample` is divisible, the sum of `inserts * samples_per_insert - samples`
        stays within the same bounds.

        Raises:
          ConfigError: a shard's part cannot work.
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
            raise ConfigError(f"replay.num_shards={count}: in each shard: {refused}") from None

    def limits(self, batch_size: int) -> RateLimits:
        """Returns the rate limits of a uniform or prioritized table for samples of `batch_size`.

        The arithmetic is that of `reverb.rate_limiters.MinSize` and `.SampleToInsertRatio`.
        """
        if self.samples_per_insert is None:
            return RateLimits(1.0, self.min_size_to_sample, -math.inf, math.inf)
        ratio = float(self.samples_per_insert)
        offset = ratio * self.min_size_to_sample
        error = self.error_buffer
        if error is None:
            error = max(0.1 * offset, batch_size * max(1.0, ratio))
        low = offset - error
        if self.strict_ratio:  # rounding must not put off the batch of an insert to the next one
            low = offset - batch_size - ratio / (4 * self.unroll_length)
        return RateLimits(ratio, self.min_size_to_sample, low, offset + error)

    def check(self, batch_size: int, streams: int = 1) -> None:
        """Refuses settings under which a program could not start or would stall.

        Args:
          batch_size: unrolls per sample.
          streams: unrolls that one `add` may finish while nobody samples: the number of streams of
            a single-threaded program; 1 where actors and learner run concurrently.

        Raises:
          ConfigError: with the arithmetic.
        """
        if batch_size < 1:
            raise ConfigError(f"batch_size must be 1 or more; got {batch_size}")
        if self.table == "queue":
            self._check_queue_size(batch_size, streams)
        elif self.samples_per_insert is not None:
            self._check_error_buffer(batch_size, streams)
        if self.num_shards > 1:
            shard = self.of_shard()
            try:
                shard.check(math.ceil(batch_size / self.num_shards))
            except ConfigError as refused:
                count = self.num_shards
                raise ConfigError(f"replay.num_shards={count}: in each shard: {refused}") from None

    def _check_queue_size(self, batch_size: int, streams: int) -> None:
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

    def _check_error_buffer(self, batch_size: int, streams: int) -> None:
        limits = self.limits(batch_size)
        width = limits.max_diff - limits.min_diff
        ratio, start = limits.samples_per_insert, self.min_size_to_sample
        if self.strict_ratio:
            upper, least = limits.max_diff - ratio * start, ratio * streams
            if upper < least * (1 - 1e-9):
                raise ConfigError(
                    f"replay.error_buffer={upper:g} would stall: one step of {streams} streams may "
                    f"finish {streams} unrolls, times samples_per_insert={ratio:g}; it must be at "
                    f"least {least:g}"
                )
            return
        # At rest between two adds: one batch short of a sample, or one unroll of the start.
        least = max((batch_size + ratio * streams) / 2, (streams - 1) * ratio)
        if width / 2 < least * (1 - 1e-9):  # it may be the default, rounded
            raise ConfigError(
                f"replay.error_buffer={width / 2:g} would stall: inserts block above "
                f"{limits.max_diff:g}, samples below {limits.min_diff:g} + {batch_size} and "
                f"below {start} unrolls; with {streams} unrolls that one step of {streams} "
                f"streams may finish, times samples_per_insert={ratio:g}, the buffer must be "
                f"at least {least:g}"
            )

    def nbytes(self, struct: Trajectory) -> int:
        """Returns the memory of the full table in bytes, without the store's own overhead.

        Args:
          struct: one stream at one step, from `distrl.specs.trajectory_struct`.
        """
        total = 0
        for field, nest in zip(struct._fields, struct, strict=True):
            rows = self.unroll_length + 1 if field in TIME_FIELDS else 1
            for leaf in jax.tree.leaves(nest):
                total += rows * math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize
        return total * self.max_size
