"""Environments written in Python: a builder, the usual wrappers, and the pool that steps them."""

import dataclasses
import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any

from distrl import specs
from distrl.envs.adapters.builder import check_builder
from distrl.envs.adapters.make import environment_spec, make_stepper
from distrl.envs.adapters.stepper import Stepper
from distrl.envs.adapters.wrappers import WrapperConfig
from distrl.envs.pool import Pool
from distrl.envs.pool_config import PoolConfig
from distrl.errors import ConfigError

__all__ = ["PoolConfig", "PythonEnvironment", "WrapperConfig"]

# By `PoolConfig.kind`: the module and its class, called as `LoopPool` is. Imported when one is
# made: a run needs one kind of them.
_POOLS = {
    "loop": ("distrl.envs.pools.loop", "LoopPool"),
    "threads": ("distrl.envs.pools.threads", "ThreadPool"),
    "processes": ("distrl.envs.pools.processes", "ProcessPool"),
}


@dataclasses.dataclass(frozen=True)
class PythonEnvironment:
    """An environment of the user's own, or of a suite in Python.

    Attributes:
      builder: makes one `gymnasium.Env` or `dm_env.Environment`. It is called with the
        environment's seed where it takes a parameter called `seed`, or one parameter that must be
        given; otherwise with nothing. A gymnasium environment gets the seed by its first `reset`
        as well.
      name: for messages and run folders; the builder's name unless given.
      wrappers: what is put around it.
      pool: how several of them are stepped, and what happens where one misbehaves.
      return_threshold: the mean return at which it counts as solved; None: it does not say.
    """

    builder: Callable[..., Any]
    name: str = ""
    wrappers: WrapperConfig = WrapperConfig()
    pool: PoolConfig = PoolConfig()
    return_threshold: float | None = None

    def __post_init__(self) -> None:
        if not callable(self.builder):
            raise ConfigError(
                "environment.builder must be a function (or class) that returns a gymnasium.Env "
                f"or a dm_env.Environment, got {self.builder!r}"
            )
        check_builder(self.builder)
        if not self.name:
            builder = getattr(self.builder, "func", self.builder)  # of a functools.partial
            object.__setattr__(self, "name", getattr(builder, "__name__", "environment"))

    def spec(self) -> specs.EnvironmentSpec:
        """Of one environment: the first call builds one, resets and steps it once, closes it.

        Raises:
          ConfigError: what the builder returned cannot be used, or not with these wrappers.
          SpecError: the environment's first two steps break its own spaces or specs.
        """
        return self._spec

    @functools.cached_property
    def _spec(self) -> specs.EnvironmentSpec:
        # Kept in the instance and pickled with it, so that workers do not build another one.
        return environment_spec(self.builder, self.name, self.wrappers)

    def make_stepper(self, seed: int) -> Stepper:
        """One environment with its wrappers, as a pool's worker steps it.

        Args:
          seed: the environment's, in [0, 2**31).
        """
        return make_stepper(self.builder, seed, self.wrappers, self._spec)

    def make_pool(self, num_envs: int, wait_num: int, seeds: Sequence[int]) -> Pool:
        """See `Environment`: a pool of `pool.kind`."""
        module, name = _POOLS[self.pool.kind]
        pool = getattr(importlib.import_module(module), name)
        return pool(self, num_envs, wait_num, seeds)
