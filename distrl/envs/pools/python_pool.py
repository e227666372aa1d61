"""What all pools of Python environments share: slots, checks, and recovery from faults."""

import abc
import logging
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from distrl import specs
from distrl.envs.pool import Pool
from distrl.envs.pools.slots import STARTED, PoolSlots
from distrl.errors import EnvironmentFault, SpecError
from distrl.runtime.heartbeat import main_thread_heartbeat
from distrl.runtime.host_resources import usable_cores
from distrl.types import Nest

LOG = logging.getLogger("distrl.envs")


class PythonPool(Pool):
    """A pool whose workers step Python environments and write their steps into slots.

    A fault of an environment: it raises, hangs for longer than `step_timeout`, ends its process,
    or returns what its spec does not allow. Policy "fail": `recv` raises EnvironmentFault, and the
    pool can only be closed. Policy "restart": the environment is rebuilt with a new seed; its open
    episode ends with a LAST that repeats the last good observation, reward 0, discount 1 (a
    truncation), and the next `send` gives the FIRST of the new one. Each fault costs one restart of
    the budget `max_restarts`; the fault after the last raises. Every restart is logged to
    "distrl.envs".
    """

    def __init__(
        self,
        environment: Any,
        num_envs: int,
        wait_num: int,
        seeds: Sequence[int],
        *,
        num_workers: int = 1,
        shared: bool = False,
    ):
        """Args:
        environment: a PythonEnvironment or a MultiAgentEnvironment.
        num_envs: number of environments.
        wait_num: number of environments that one `recv` returns.
        seeds: seeds of the environments.
        num_workers: number of workers; environment i belongs to worker `i % num_workers`.
        shared: workers are processes.
        """
        clip_actions = environment.wrappers.clip_actions
        super().__init__(environment.name, environment.spec(), num_envs, wait_num, clip_actions)
        if len(seeds) < num_envs:
            raise ValueError(f"{num_envs} environments need as many seeds, got {len(seeds)}")
        self._environment = environment
        self._config = environment.pool
        self._num_workers = num_workers
        self._slots = PoolSlots(self.name, self.spec, seeds[:num_envs], num_workers, shared)
        struct = specs.struct(self.spec.action)
        self._action_leaves = jax.tree.leaves(struct)
        self._action_structure = jax.tree.structure(struct)
        self._rows = np.arange(num_envs, 2 * num_envs, dtype=np.int32)  # rows of the last steps
        self._both_rows = 2 * np.arange(num_envs, dtype=np.int32) + num_envs
        self._in_workers = np.zeros(num_envs, bool)  # sent, and not yet received
        self._ready: list[int] = []  # rows, in order of arrival
        self._lost: set[int] = set()  # lost in an open episode, which the caller does not know yet
        self._began = 0.0  # when the newest step began that `_note_progress` has seen
        self._budget = self._config.max_restarts
        self._failure: str | None = None
        self._closed = False

    def _start(self) -> None:
        self._check_usable()
        self._begin(self.env_ids)

    def _send(self, action: Nest, env_ids: npt.NDArray[np.int32]) -> None:
        self._check_usable()
        leaves = self._check_action(action, len(env_ids))
        self._check_choices(leaves, env_ids)
        if np.count_nonzero(self._in_workers[env_ids]):
            busy = env_ids[self._in_workers[env_ids]]
            raise RuntimeError(f"{self.name}: environments {busy} are in flight; recv() them first")
        if len(env_ids) == self.num_envs and not self.is_async and env_ids is self.env_ids:
            for table, leaf in zip(self._slots.action, leaves):
                table[:] = leaf
        else:
            for table, leaf in zip(self._slots.action, leaves):
                table[env_ids] = leaf
        self._begin(env_ids)

    def _begin(self, env_ids: npt.NDArray[np.int32]) -> None:
        rows = self._both_rows[env_ids] - self._rows[env_ids]
        self._rows[env_ids] = rows
        self._in_workers[env_ids] = True
        if self._lost:
            rows = self._truncate_lost(rows)
        self._dispatch(rows)

    def _truncate_lost(self, rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Ends the open episodes of lost environments; returns the rows of the others."""
        others = []
        for row in rows.tolist():
            if row % self.num_envs in self._lost:
                self._lost.remove(row % self.num_envs)
                self._slots.truncate(row)
                self._ready.append(row)
            else:
                others.append(row)
        return np.array(others, np.int32)

    def _check_action(self, action: Nest, count: int) -> list[npt.NDArray[Any]]:
        leaves, structure = jax.tree_util.tree_flatten(action)
        if structure == self._action_structure:
            leaves = [np.asarray(leaf) for leaf in leaves]
            for leaf, want in zip(leaves, self._action_leaves):
                if leaf.shape != (count, *want.shape) or leaf.dtype != want.dtype:
                    break
            else:
                return leaves
        specs.check(action, self.spec.action, (count,), f"action of {self.name}")
        raise SpecError(f"action of {self.name}: expected arrays, got {action!r:.200}")

    def _recv(
        self,
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any], Nest, npt.NDArray[Any], Nest]:
        self._check_usable()
        ready, count = self._ready, self.wait_num
        while len(ready) < count:
            rows = self._wait(count - len(ready))
            if rows:
                ready += rows if min(rows) >= 0 else self._settle(rows)
        if not self.is_async:
            first = 0 if ready[0] < self.num_envs else self.num_envs
            ready.clear()
            env_ids = self.env_ids.copy()
            self._in_workers[:] = False
            step = self._slots.read(slice(first, first + self.num_envs))
        else:
            batch = np.array(ready[:count], np.int32)
            del ready[:count]
            env_ids = batch % np.int32(self.num_envs)
            self._in_workers[env_ids] = False
            step = self._slots.read(batch)
        step_type, reward, discount, observation, info = step
        return step_type, reward, discount, observation, env_ids, info

    def _note_progress(self) -> None:
        """Ticks the node's heartbeat if an environment's step has begun since the last call.

        Each step has its own limit, and the node makes progress from one to the next, however many
        of them a `recv` needs. `_wait` must call this about every `tick` seconds.
        """
        began = float(self._slots.times[:, STARTED].max())
        if began != self._began:
            self._began = began
            main_thread_heartbeat().tick()

    def _settle(self, rows: list[int]) -> list[int]:
        """Returns the ready rows among those that a worker reported, some of them faults."""
        ready = []
        for row in rows:
            if row >= 0 or self._restart(-1 - row):
                ready.append(row if row >= 0 else -1 - row)
        return ready

    def _restart(self, row: int) -> bool:
        """Recovers from a fault whose text is in the slots. Returns whether `row` is ready now.

        Raises:
          EnvironmentFault: the policy is to fail, or the budget is spent.
        """
        env_id = row % self.num_envs
        self._spend(self._slots.read_fault(env_id))
        return self._rebuild(row)

    def _spend(self, text: str) -> None:
        """Spends one restart of the budget, or raises EnvironmentFault."""
        if self._config.on_fault == "fail":
            self._fail(text)
        if self._budget == 0:
            self._fail(
                f"{text}\n{self.name}: the budget of environment.pool.max_restarts="
                f"{self._config.max_restarts} restarts is spent"
            )
        self._budget -= 1
        LOG.warning("%s\n%s: restarting; the budget is %d more", text, self.name, self._budget)

    def _rebuild(self, row: int) -> bool:
        """Rebuilds the environment of `row`, in flight. Returns whether `row` is ready now."""
        self._count(row % self.num_envs)
        self._lost.discard(row % self.num_envs)  # the caller learns of it by this row
        if self._slots.is_open(self._slots.other(row)):
            self._slots.truncate(row)
            return True
        self._dispatch(np.array([row], np.int32))  # it waits for its reset
        return False

    def _count(self, env_id: int) -> None:
        self._slots.rebuilt[env_id] += 1
        self.restarts += 1

    def _fail(self, text: str) -> None:
        self._failure = text
        fault = EnvironmentFault(text)
        fault.original = self._original()
        raise fault

    def _original(self) -> BaseException | None:
        """Returns the exception behind the last fault, if it was raised in this thread."""
        return None

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise EnvironmentFault(self._failure)
        if self._closed:
            raise RuntimeError(f"{self.name}: the pool is closed")

    def _flying(self, worker: int, arrived: Sequence[int] = ()) -> list[int]:
        """Returns the rows that were sent to a worker and have not come back.

        Args:
          worker: the worker's index.
          arrived: rows from workers that are not yet in `_ready`.
        """
        back = {*self._ready, *arrived, *(-1 - row for row in arrived)}
        env_ids = range(worker, self.num_envs, self._num_workers)
        rows = [int(self._rows[env_id]) for env_id in env_ids if self._in_workers[env_id]]
        return [row for row in rows if row not in back]

    def _dispatch(self, rows: npt.NDArray[Any]) -> None:
        """Makes the workers step or reset the environments of `rows`, int32."""
        count = self._num_workers
        if count == 1:
            self._assign(0, rows)
            return
        owners = rows % self.num_envs % count
        for index in range(count):
            rows_of_worker = rows[owners == index]
            if len(rows_of_worker):
                self._assign(index, rows_of_worker)

    @abc.abstractmethod
    def _assign(self, index: int, rows: npt.NDArray[Any]) -> None:
        """Makes worker `index` step or reset the environments of `rows`, int32."""

    @abc.abstractmethod
    def _wait(self, count: int) -> list[int]:
        """Waits for steps and returns their rows, `-1 - row` for faults; [] if none came.

        It returns after `tick` seconds at the latest, or when a step that it runs then ends.

        Args:
          count: number of rows that `recv` still needs.
        """


def workers_for(num_workers: int | None, num_envs: int) -> int:
    """Returns `num_workers`, or the usable cores, but at most one per environment."""
    return min(num_envs, usable_cores() if num_workers is None else num_workers)


def tick(step_timeout: float) -> float:
    """Returns the seconds between two checks of how far the environments are."""
    return min(step_timeout / 4, 1.0)


def hung(where: str, limit: float) -> str:
    """Returns the message of a hang. Args: where: the result of `PoolSlots.where`."""
    return f"{where}: hung; its step or reset did not end within step_timeout={limit:g} s"
