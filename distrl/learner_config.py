"""Settings of a learner, checked when they are made."""

import dataclasses

from distrl.errors import ConfigError
from distrl.field_checks import check_choice, check_flag, check_whole, plain_numbers
from distrl.learner_group.devices import check_split
from distrl.runtime.durations import check_duration


@dataclasses.dataclass(frozen=True)
class LearnerConfig:
    """The learner.

    Attributes:
      batch_size: unrolls in an update.
      timeout: seconds without a batch, and without a sign of progress from the nodes that make
        batches, after which the learner fails.
      num_gpus: GPUs of the learner's node; 0: it runs on the CPU and sees none.
      num_devices: devices over which a batch is split evenly. 0: all that JAX has in the learner's
        process: its GPUs, or the one CPU.
      on_nonfinite: what to do about an update whose loss, gradients or new parameters are not
        finite. "fail": end the run; "skip": keep parameters and optimiser as they are, count the
        update in `updates_skipped`, and fail after 100 of them in a row. Parameters that are not
        finite are neither published nor saved.
      max_policy_lag: unrolls with a step whose action was chosen by parameters more learner steps
        old than this are not learned from, but dropped, and counted in `unrolls_too_old` if they
        had been drawn. None: no bound.
      every_unrolls: an update is started by the arrival of this many unrolls in a uniform or
        prioritized table, once it holds `replay.min_size_to_sample`. It replaces
        `replay.samples_per_insert`. None: updates are made as the table admits them.
      every_steps: instead of `every_unrolls`, an update is started by this many steps of the
        actors: exactly in one process; in several, as unrolls arrive, where the rows between
        episodes count, too. None: steps start no updates.
      num_gradient_workers: nodes that compute the gradients of a batch, a share each; 0: the
        learner does. With several policies, workers move between them as their load changes; this
        is the number at the start.
      gradient_timeout: most seconds that a gradient worker has for its share; usually it has five
        times what recent shares took. A late share is computed elsewhere.
      learning: False: updates change nothing. The parameters stay the initial ones, or those that a
        run is resumed with, while acting continues; batches are consumed, counted and logged.
    """

    batch_size: int = 64
    timeout: float = 120.0
    num_gpus: int = 0
    num_devices: int = 0
    on_nonfinite: str = "fail"
    max_policy_lag: int | None = None
    every_unrolls: int | None = None
    every_steps: int | None = None
    num_gradient_workers: int = 0
    learning: bool = True
    gradient_timeout: float = 30.0

    def __post_init__(self) -> None:
        plain_numbers(self)
        check_flag(self, "learning", "learner")
        check_whole(self, "batch_size", "learner")
        for name in ("num_gpus", "num_devices", "num_gradient_workers"):
            check_whole(self, name, "learner", least=0)
        if not self.learning and self.num_gradient_workers:
            raise ConfigError(
                f"learner.num_gradient_workers={self.num_gradient_workers} with "
                "learner.learning=False: no gradient is needed; take 0"
            )
        self._check_gradient_workers()
        check_choice(self, "on_nonfinite", ("fail", "skip"), "learner")
        for name in ("every_unrolls", "every_steps"):
            check_whole(self, name, "learner", none=True)
        if self.every_unrolls is not None and self.every_steps is not None:
            raise ConfigError(
                f"learner.every_unrolls={self.every_unrolls} and learner.every_steps="
                f"{self.every_steps} both say what starts an update; leave one None"
            )
        check_whole(self, "max_policy_lag", "learner", least=0, none=True, unit="of learner steps")
        check_duration("learner.timeout", self.timeout)
        if 0 < self.num_gpus < self.num_devices:
            raise ConfigError(
                f"learner.num_devices={self.num_devices} is more than "
                f"learner.num_gpus={self.num_gpus}"
            )
        check_split(self.batch_size, self.num_devices or self.num_gpus or 1)

    def _check_gradient_workers(self) -> None:
        count = self.num_gradient_workers
        check_duration("learner.gradient_timeout", self.gradient_timeout, infinite=False)
        if count > self.batch_size:
            raise ConfigError(
                f"learner.num_gradient_workers={count} is more than learner.batch_size="
                f"{self.batch_size} unrolls, of which each computes at least one; take at most "
                f"{self.batch_size}"
            )
        for name, most in (("num_gpus", 0), ("num_devices", 1)):
            if count and getattr(self, name) > most:
                raise ConfigError(
                    f"learner.num_gradient_workers={count} with learner.{name}="
                    f"{getattr(self, name)}: workers compute gradients on CPUs, instead of "
                    "the learner's devices; take one of the two"
                )
