"""Builds steppers of any library's environments, and finds out their specs."""

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import numpy.typing as npt
from dm_env import specs as dm_specs

from distrl import specs
from distrl.envs.adapters.builder import Builder, build, close_env, is_gymnasium
from distrl.envs.adapters.conform import (
    NestCheck,
    RewardCheck,
    SpecViolation,
    check_first,
    check_last,
)
from distrl.envs.adapters.dm_stepper import DmStepper
from distrl.envs.adapters.gym_stepper import GymStepper
from distrl.envs.adapters.stepper import Stepper
from distrl.envs.adapters.wrappers import WrapperConfig, wrap, wrapped_spec
from distrl.errors import SpecError
from distrl.types import Nest, StepType


def make_stepper(
    builder: Builder, seed: int, wrappers: WrapperConfig, spec: specs.EnvironmentSpec
) -> Stepper:
    """Builds one environment with its wrappers.

    Args:
      builder: see `PythonEnvironment`.
      seed: the environment's seed.
      wrappers: its wrappers.
      spec: the result of `environment_spec` for the same builder and wrappers.
    """
    env = build(builder, seed)
    adapter: GymStepper | DmStepper
    if is_gymnasium(env):
        adapter = GymStepper(env, seed, "success" in spec.env_info, tuple(spec.reward.shape))
    else:
        adapter = DmStepper(env)
    return wrap(adapter, adapter.spec(), wrappers)


def environment_spec(
    builder: Builder, name: str, wrappers: WrapperConfig, check_finite: bool
) -> specs.EnvironmentSpec:
    """Builds one environment, resets and steps it once, closes it, and returns its spec.

    Args:
      builder: see `PythonEnvironment`.
      name: name of the environment, for messages.
      wrappers: the environment's wrappers; the spec is the one behind them.
      check_finite: refuse NaN and infinity.

    Raises:
      ConfigError: distrl cannot use the environment, or not with these wrappers.
      SpecError: the two steps violate the environment's own spaces or specs.
    """
    env = build(builder, 0)
    try:
        adapter: GymStepper | DmStepper
        adapter = GymStepper(env, 0, True) if is_gymnasium(env) else DmStepper(env)
        raw = adapter.spec()
        spec = wrapped_spec(raw, wrappers)
        stepper = wrap(adapter, raw, wrappers)
        check_observation = NestCheck("observation", spec.observation, check_finite)
        check_info = NestCheck("env_info", spec.env_info, check_finite)
        with _naming(name, "first"):
            first = stepper.reset()
            check_observation(first.observation)
            check_info(first.env_info)
            check_first(first.step_type)
        with _naming(name, "second"):
            second = stepper.step(any_action(spec.action))
            check_observation(second.observation)
            check_info(second.env_info)
            if second.discount != 1 or second.step_type != StepType.MID:
                check_last(second.step_type, second.discount)
            if (
                isinstance(adapter, GymStepper)
                and adapter.inherits_reward
                and not np.ndim(second.reward)
            ):
                # A wrapper may make one number of the vector that its environment declares.
                spec = spec._replace(reward=dm_specs.Array((), np.float32, "reward"))
            RewardCheck(spec.reward, check_finite)(second.reward)
        if isinstance(adapter, GymStepper) and not (
            adapter.reports_success or adapter.has_seen_success
        ):
            env_info = {k: v for k, v in spec.env_info.items() if k != "success"}
            spec = spec._replace(env_info=env_info or ())
        return spec
    finally:
        close_env(env, name)


@contextlib.contextmanager
def _naming(name: str, which: str) -> Iterator[None]:
    """Names the environment and the step in the message of a SpecViolation."""
    try:
        yield
    except SpecViolation as violation:
        raise SpecError(f"{name}: {which} {violation}") from None


def any_action(spec: Nest, *leading: int) -> Nest:
    """Returns legal actions `[*leading, ...]`: the values within the bounds nearest to zeros."""

    def one(leaf: Any) -> npt.NDArray[Any]:
        zeros = np.zeros((*leading, *leaf.shape), leaf.dtype)
        if not isinstance(leaf, dm_specs.BoundedArray):
            return zeros
        return np.clip(zeros, leaf.minimum, leaf.maximum).astype(leaf.dtype)

    return jax.tree.map(one, spec, is_leaf=specs.is_spec)
