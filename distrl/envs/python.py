"""Python environments in a pool: a loop over dm_env environments in this process."""

import collections
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import dm_env
import jax
import numpy as np

from distrl import specs
from distrl.envs.pool import Pool
from distrl.errors import ConfigError, SpecError
from distrl.types import Nest, StepType, TimeStep


@dataclasses.dataclass(frozen=True)
class PythonEnvironment:
    """An environment of the user's own.

    Attributes:
      builder: `builder(seed) -> dm_env.Environment`.
      name: for messages; the builder's name unless given.
    """

    builder: Callable[[int], dm_env.Environment]
    name: str = ""

    def __post_init__(self) -> None:
        if not callable(self.builder):
            raise ConfigError(
                "environment.builder must be a function of a seed that returns a "
                f"dm_env.Environment, got {self.builder!r}"
            )
        if not self.name:
            object.__setattr__(self, "name", getattr(self.builder, "__name__", "environment"))

    def spec(self) -> specs.EnvironmentSpec:
        """Of one environment, which it builds, resets once to see that it holds, and closes."""
        env = self.builder(0)
        try:
            reward = env.reward_spec()
            spec = specs.EnvironmentSpec(
                env.observation_spec(),
                env.action_spec(),
                reward.replace(dtype=np.float32) if reward.dtype != np.float32 else reward,
            )
            first = jax.tree.map(np.asarray, env.reset().observation)
            specs.check(first, spec.observation, (), f"first observation of {self.name}")
            return spec
        finally:
            env.close()

    def make_pool(self, num_envs: int, wait_num: int, seeds: Sequence[int]) -> "LoopPool":
        """See `Environment`. Environment i is built with `seeds[i]`."""
        return LoopPool(self, num_envs, wait_num, seeds)


class LoopPool(Pool):
    """Steps its environments one after the other, in this thread.

    What each environment returns is checked against its spec. Asynchronous, it returns the
    environments in the order in which they were sent.
    """

    def __init__(
        self, environment: PythonEnvironment, num_envs: int, wait_num: int, seeds: Sequence[int]
    ):
        """See `PythonEnvironment.make_pool`."""
        super().__init__(environment.name, environment.spec(), num_envs, wait_num)
        self._envs = [environment.builder(seeds[i]) for i in range(num_envs)]
        self._ended = np.ones(num_envs, bool)
        self._ready: collections.deque[tuple[int, TimeStep]] = collections.deque()

    def _start(self) -> None:
        self._ready.extend((i, self._convert(i, env.reset())) for i, env in enumerate(self._envs))

    def _send(self, action: Nest, env_ids: np.ndarray) -> None:
        for row, i in enumerate(env_ids):
            env = self._envs[i]
            if self._ended[i]:
                step = env.reset()
            else:
                step = env.step(jax.tree.map(lambda leaf, row=row: leaf[row], action))
            self._ready.append((int(i), self._convert(int(i), step)))

    def _recv(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, Nest, np.ndarray, Nest]:
        ready = [self._ready.popleft() for _ in range(self.wait_num)]
        ids = np.array([i for i, _ in ready], np.int32)
        step = jax.tree.map(lambda *rows: np.stack(rows), *(step for _, step in ready))
        return step.step_type, step.reward, step.discount, step.observation, ids, ()

    def _convert(self, i: int, step: dm_env.TimeStep) -> TimeStep:
        """One environment's step as a TimeStep without a leading axis, checked."""
        where = f"environment {i} of {self.name}"
        observation: Any = jax.tree.map(np.asarray, step.observation)
        specs.check(observation, self.spec.observation, (), f"observation of {where}")
        first, last = step.first(), step.last()
        self._ended[i] = last
        if not first and (step.reward is None or step.discount is None):
            raise SpecError(f"{where}: expected a reward and a discount after FIRST, got None")
        if not first and step.discount not in (0, 1):
            raise SpecError(f"discount of {where}: expected 0 or 1, got {step.discount}")
        reward = np.zeros(self.spec.reward.shape, np.float32)
        if not first:
            reward[...] = step.reward
        return TimeStep(
            step_type=np.int8(StepType.LAST if last else StepType.FIRST if first else StepType.MID),
            reward=reward,
            discount=np.float32(1 if first else step.discount),
            observation=observation,
            prev_action=(),
        )

    def close(self) -> None:
        """See `Pool`."""
        for env in self._envs:
            env.close()
