"""The memory through which environments and their pool exchange actions and steps."""

import mmap
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from distrl import specs
from distrl.seeds import restart_seed
from distrl.types import Nest, StepType

_ALIGN = 64  # bytes: no two leaves, and no two workers' cells, share a cache line
_TEXT = 8192  # bytes of a fault's message

ENV, DONE = 0, 1
"""Columns of `PoolSlots.counters`: the environment that a worker is stepping (-1: none), and the
number of steps it has done."""
STARTED, BUSY = 0, 1
"""Columns of `PoolSlots.times`: when that step began (CLOCK_MONOTONIC), and the total seconds spent
in the environments' code."""


class PoolSlots:
    """Preallocated arrays for a pool's actions and steps, perhaps in shared memory.

    Steps of environment `i` have two rows, `i` and `num_envs + i`, used alternately: while a worker
    writes one, the other holds the last good step. Actions have one row each: they are written only
    while their environment is idle.

    Attributes:
      action, observation, env_info: lists of leaves, in the order of `jax.tree.leaves`; `[N, ...]`
        for actions, otherwise `[2 N, ...]`.
      step_type, reward, discount: as in a TimeStep, `[2 N, ...]`.
      rebuilt: int32 [N], how often each environment was rebuilt.
      episode_steps, steps: int64 [N], steps of each environment's episode, and since it was built.
      counters, times: int64 and float64, one row per worker; see ENV and STARTED.
      closing: int64 [1], not 0 once workers are to stop at the next step.
    """

    def __init__(
        self,
        name: str,
        spec: specs.EnvironmentSpec,
        seeds: Sequence[int],
        num_workers: int,
        shared: bool,
    ):
        """Args:
        name: name of the environment, for messages.
        spec: spec of one environment.
        seeds: seeds of the N environments.
        num_workers: number of workers.
        shared: use anonymous memory that forked processes share.
        """
        self._name = name
        self._seeds = list(seeds)
        self.num_envs = num_envs = len(self._seeds)
        self._used = 0
        self._plan: list[tuple[int, tuple[int, ...], np.dtype[Any]]] = []
        structs = [specs.struct(nest) for nest in (spec.action, spec.observation, spec.env_info)]
        leaves = [jax.tree.leaves(nest) for nest in structs]
        self._structures = [jax.tree.structure(nest) for nest in structs]
        infos = jax.tree_util.tree_leaves_with_path(structs[2])
        self._success = next(
            (k for k, (path, _) in enumerate(infos) if specs.path_name(path) == "success"), None
        )
        for leaf in leaves[0]:
            self._add((num_envs, *leaf.shape), leaf.dtype)
        for leaf in leaves[1] + leaves[2]:
            self._add((2 * num_envs, *leaf.shape), leaf.dtype)
        self._add((2 * num_envs,), np.int8)
        self._add((2 * num_envs, *spec.reward.shape), np.float32)
        self._add((2 * num_envs,), np.float32)
        self._add((num_envs,), np.int32)
        self._add((num_envs,), np.int64)
        self._add((num_envs,), np.int64)
        self._add((num_envs, _TEXT), np.uint8)
        self._add((num_workers, _ALIGN // 8), np.int64)
        self._add((num_workers, _ALIGN // 8), np.float64)
        self._add((1,), np.int64)
        # The kernel frees the memory when the last process that maps it has ended.
        memory: Any = mmap.mmap(-1, self._used) if shared else np.zeros(self._used, np.uint8)
        arrays: list[Any] = [
            np.ndarray(shape, dtype, memory, at) for at, shape, dtype in self._plan
        ]
        num_actions, num_observations = len(leaves[0]), len(leaves[1])
        self.action = arrays[:num_actions]
        self.observation = arrays[num_actions : num_actions + num_observations]
        self.env_info = arrays[num_actions + num_observations : -10]
        (self.step_type, self.reward, self.discount, self.rebuilt, self.episode_steps, self.steps,
         self._text, self.counters, self.times, self.closing) = arrays[-10:]  # fmt: skip
        self.step_type[:] = StepType.LAST  # no episode is open
        self.counters[:, ENV] = -1

    def _add(self, shape: tuple[int, ...], dtype: Any) -> None:
        dtype = np.dtype(dtype)
        self._plan.append((self._used, shape, dtype))
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        self._used += -(-size // _ALIGN) * _ALIGN

    def action_nest(self, leaves: list[Any]) -> Nest:
        """Returns the nest of an action from its leaves."""
        return jax.tree.unflatten(self._structures[0], leaves)

    def read(
        self, rows: Any
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any], Nest, Nest]:
        """Returns copies of `(step_type, reward, discount, observation, env_info)`.

        Args:
          rows: a slice, or an array of row numbers.
        """
        if isinstance(rows, slice):
            arrays = [array[rows].copy() for array in self._all()]
        else:
            arrays = [array.take(rows, 0) for array in self._all()]
        step_type, reward, discount, *leaves = arrays
        observation, info = leaves[: len(self.observation)], leaves[len(self.observation) :]
        return (
            step_type,
            reward,
            discount,
            jax.tree.unflatten(self._structures[1], observation),
            jax.tree.unflatten(self._structures[2], info),
        )

    def _all(self) -> list[npt.NDArray[Any]]:
        return [self.step_type, self.reward, self.discount, *self.observation, *self.env_info]

    def other(self, row: int) -> int:
        """Returns the row of the environment's step before the one in `row`."""
        return row - self.num_envs if row >= self.num_envs else row + self.num_envs

    def is_open(self, row: int) -> bool:
        """Returns whether the episode of the step in `row` continues after it."""
        return bool(self.step_type[row] != StepType.LAST)

    def truncate(self, row: int) -> None:
        """Makes `row` the LAST of an episode that was cut after the step in the other row."""
        last = self.other(row)
        for array in self.observation:
            array[row] = array[last]
        for array in self.env_info:
            array[row] = 0
        if self._success is not None:
            self.env_info[self._success][row] = -1  # unknown
        self.reward[row] = 0
        self.discount[row] = 1
        self.step_type[row] = StepType.LAST

    def seed(self, env_id: int) -> int:
        """Returns an environment's seed, which changes when the environment is rebuilt."""
        return restart_seed(self._seeds[env_id], int(self.rebuilt[env_id]))

    def where(self, env_id: int) -> str:
        """Returns a description of an environment, its seed and its step, for messages."""
        return (
            f"{self._name}: environment {env_id} (seed {self.seed(env_id)}, step "
            f"{self.episode_steps[env_id]} of its episode, {self.steps[env_id]} in all)"
        )

    def write_fault(self, env_id: int, text: str) -> None:
        """Stores the message of an environment's fault; only the start and end of a long one."""
        data = text.encode("utf-8", "backslashreplace")
        if len(data) > _TEXT - 1:
            data = data[: _TEXT // 4] + b"\n[...]\n" + data[-(_TEXT - _TEXT // 4 - 8) :]
        self._text[env_id, : len(data)] = np.frombuffer(data, np.uint8)
        self._text[env_id, len(data)] = 0

    def read_fault(self, env_id: int) -> str:
        """Returns the message that `write_fault` stored."""
        return self._text[env_id].tobytes().partition(b"\0")[0].decode("utf-8", "replace")
