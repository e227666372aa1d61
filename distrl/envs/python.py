"""Environments written in Python: a builder, the usual wrappers, and the pool that steps them."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

from distrl import specs
from distrl.envs.adapters.builder import builder_name, check_builder
from distrl.envs.adapters.make import environment_spec, make_stepper
from distrl.envs.adapters.stepper import Stepper
from distrl.envs.adapters.wrappers import WrapperConfig
from distrl.envs.pool import Pool
from distrl.envs.pool_config import PoolConfig
from distrl.errors import ConfigError
from distrl.field_checks import check_kind, is_number, plain_numbers

__all__ = ["PoolConfig", "PythonEnvironment", "WrapperConfig"]


def check_settings(environment: Any, product: str) -> None:
    """Checks the settings of an environment in Python, and names it after its builder if need be.

    Args:
      environment: a `PythonEnvironment` or a `MultiAgentEnvironment`, which is being made.
      product: what its builder must return, for messages.

    Raises:
      ConfigError: a setting is wrong.
    """
    plain_numbers(environment)
    check_builder(environment.builder, product)
    if not isinstance(environment.name, str):
        raise ConfigError(f"environment.name must be a name, got {environment.name!r}")
    check_kind(environment, "wrappers", WrapperConfig, "environment")
    check_kind(environment, "pool", PoolConfig, "environment")
    threshold = environment.return_threshold
    if threshold is not None and not is_number(threshold):
        raise ConfigError(
            f"environment.return_threshold must be a finite number, or None; got {threshold!r}"
        )
    if not environment.name:
        object.__setattr__(environment, "name", builder_name(environment.builder))


@dataclasses.dataclass(frozen=True)
class PythonEnvironment:
    """An environment written in Python: the user's, or a suite's.

    Attributes:
      builder: function that returns one `gymnasium.Env` or `dm_env.Environment`. It is called with
        the environment's seed if it has a parameter called `seed`, or one required parameter;
        otherwise without arguments. A gymnasium environment also gets the seed in its first
        `reset`.
      name: name for messages and run folders; the builder's name unless given.
      wrappers: wrappers of each environment.
      pool: how several environments are stepped, and what happens if one misbehaves.
      return_threshold: mean return at which the environment counts as solved; None: unknown.
    """

    builder: Callable[..., Any]
    name: str = ""
    wrappers: WrapperConfig = WrapperConfig()
    pool: PoolConfig = PoolConfig()
    return_threshold: float | None = None

    def __post_init__(self) -> None:
        check_settings(self, "a gymnasium.Env or a dm_env.Environment")

    def spec(self) -> specs.EnvironmentSpec:
        """Returns one environment's spec. The first call builds one, steps it once and closes it.

        Raises:
          ConfigError: distrl cannot use the builder's environment, or not with these wrappers.
          SpecError: the environment's first two steps violate its own spaces or specs.
        """
        return self._spec

    @property
    def episode_limit(self) -> int | None:
        """The most steps of an episode by the wrappers; None: they set no limit."""
        limit = self.wrappers.max_episode_steps
        return None if limit is None else -(-limit // self.wrappers.action_repeat)

    @functools.cached_property
    def _spec(self) -> specs.EnvironmentSpec:
        # Cached in the instance and pickled with it, so that workers do not build another one.
        return environment_spec(self.builder, self.name, self.wrappers, self.pool.check_finite)

    def make_stepper(self, seed: int) -> Stepper:
        """Returns one environment with its wrappers, for a pool's worker.

        Args:
          seed: the environment's seed, in [0, 2**31).
        """
        return make_stepper(self.builder, seed, self.wrappers, self._spec)

    def make_pool(self, num_envs: int, wait_num: int, seeds: Sequence[int]) -> Pool:
        """See `Environment`. The pool is one of `pool.kind`."""
        return self.pool.pool_class()(self, num_envs, wait_num, seeds)
