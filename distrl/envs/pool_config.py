"""Settings of a pool of Python environments: how it steps them, and what happens at a fault."""

import dataclasses
import importlib
from typing import Any

from distrl.errors import ConfigError
from distrl.field_checks import check_choice, check_flag, check_whole, plain_numbers
from distrl.runtime.durations import check_duration

# Module and class by kind. Imported when a pool is made: a run needs one kind.
_POOLS = {
    "loop": ("distrl.envs.pools.loop", "LoopPool"),
    "threads": ("distrl.envs.pools.threads", "ThreadPool"),
    "processes": ("distrl.envs.pools.processes", "ProcessPool"),
}
KINDS = tuple(_POOLS)
POLICIES = ("fail", "restart")


@dataclasses.dataclass(frozen=True)
class PoolConfig:
    """Settings of a pool of Python environments.

    Attributes:
      kind: "loop" (one after the other in the caller's thread), "threads" (for environments that
        wait or release the GIL) or "processes" (for others with steps of more than about 50 us).
      num_workers: threads or processes among which the environments are divided, at most one per
        environment. None: one for each core that the process may use.
      pin_workers: pin the worker processes to the usable cores in turn. On an otherwise idle
        machine, steps that wait for all environments are then a few percent faster; an
        environment's own threads share the core.
      worker_threads: BLAS, OpenMP and XLA threads of a worker process; 0: do not limit them.
      step_timeout: seconds that a step or a reset may take, building included; `math.inf`: no
        limit.
      on_fault: what happens if an environment raises, hangs, dies or returns what its spec does
        not allow. "fail": `recv` raises EnvironmentFault. "restart": the environment is rebuilt
        with a new seed, and its open episode ends as truncated.
      max_restarts: faults of a pool's environments, in total, after which the next one fails.
      check_finite: treat NaN and infinite observations, infos and rewards as faults.
    """

    kind: str = "loop"
    num_workers: int | None = None
    pin_workers: bool = False
    worker_threads: int = 1
    step_timeout: float = 60.0
    on_fault: str = "fail"
    max_restarts: int = 10
    check_finite: bool = True

    def __post_init__(self) -> None:
        plain_numbers(self)
        for name, choices in (("kind", KINDS), ("on_fault", POLICIES)):
            check_choice(self, name, choices, "environment.pool")
        for name in ("pin_workers", "check_finite"):
            check_flag(self, name, "environment.pool")
        if self.pin_workers and self.kind != "processes":
            raise ConfigError(
                f"environment.pool.pin_workers is for worker processes, and kind is {self.kind!r}"
            )
        check_whole(self, "num_workers", "environment.pool", none=True)
        for name in ("worker_threads", "max_restarts"):
            check_whole(self, name, "environment.pool", least=0)
        check_duration("environment.pool.step_timeout", self.step_timeout)

    def pool_class(self) -> Any:
        """Returns the class of pools of this kind; see `distrl.envs.pools.python_pool`."""
        module, name = _POOLS[self.kind]
        return getattr(importlib.import_module(module), name)
