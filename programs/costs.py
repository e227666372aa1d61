"""Measures what an environment step, an inference and an update of an experiment cost here.

JAX and environments are used: call it in a process that does nothing else afterwards.
"""

import contextlib
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from distrl import specs
from distrl.envs.pool import Environment, on_cores
from distrl.experiment import Experiment
from distrl.inferencer import Inferencer
from distrl.learner import Learner
from distrl.learning.random_batches import NoReplay
from distrl.programs.build import NEVER, Builder
from distrl.programs.topology_rates import CPU, GPU, Cost, CostLine, Costs, DeviceCosts
from distrl.replay.columns import Columns
from distrl.runtime.host_resources import on_one_core, usable_cores
from distrl.runtime.process_stat import process_stat
from distrl.types import StepType, TimeStep
from distrl.variables.client import VariableClient

_STEPS_S, _INFERENCES_S, _UPDATES_S = 0.15, 0.08, 0.15  # for each measurement
_SLOW_S = 0.5  # seconds; a slower step of all environments is inferred from a step of a few


def measure(experiment: Experiment, cores: int) -> Costs:
    """Returns the costs; takes about a second, beside compilation and a few steps.

    Args:
      experiment: an experiment with one policy and one agent in an environment.
      cores: number of cores that the program may keep busy.
    """
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    actors, many = experiment.actors, experiment.actors.num_streams
    few = actors.num_envs if actors.num_actors > 1 else max(1, many // 4)
    builder = Builder(experiment, printer=lambda line: None)
    pools = _Pools(few, many)  # first: they may fork
    one, all_cores = (on_cores(experiment.environment, count) for count in (1, cores))
    devices = {CPU: jax.devices("cpu")[0]}
    pools.make(one)
    if jax.default_backend() == GPU:
        devices[GPU] = jax.devices(GPU)[0]
    columns = Columns(builder.struct, builder.task.replay.unroll_length)
    measured = {}
    for name, device in devices.items():
        with jax.default_device(device):
            learner = builder.make_learner(NoReplay(columns))  # type: ignore[arg-type]
            inferencer = builder.make_inferencer(VariableClient(learner, NEVER), many)
            inferences = {n: _inference(builder, inferencer, n) for n in (few, many)}
            if name == CPU:
                step = pools.step(inferencer)
                threaded = None if all_cores == one else pools.threaded(inferencer, all_cores)
                # Between steps it takes longer: caches, and threads that must be woken.
                for n, wall in pools.inferences.items():
                    inferences[n] = inferences[n]._replace(wall=wall)
            inference = CostLine.through(few, inferences[few], many, inferences[many])
            measured[name] = DeviceCosts(
                inference, _update(columns, builder.task.learner.batch_size, learner)
            )
    return Costs(step, threaded, measured, pools.shares_core and experiment.actors.pin)


class _Pools:
    """Times steps of a few environments, and of all.

    Attributes:
      inferences: by number of environments, seconds of an inference between their steps.
      shares_core: see `Costs`.
    """

    def __init__(self, few: int, many: int):
        self.inferences: dict[int, float] = {}
        self.shares_core = False
        self._few, self._many = few, many
        self._pools: dict[int, Any] = {}

    def make(self, environment: Environment) -> None:
        """Makes the pools; that of all environments only if a few are made fast enough."""
        self._environment = environment
        began = time.perf_counter()
        self._make(self._few)
        # Environments that take long to make are not made again.
        if time.perf_counter() - began < _SLOW_S and self._many != self._few:
            self._make(self._many)

    def _make(self, num_envs: int) -> None:
        self._pools[num_envs] = self._environment.make_pool(num_envs, num_envs, range(num_envs))

    def step(self, inferencer: Inferencer) -> CostLine:
        """Returns the cost of steps by the number of environments."""
        few = cost = more = None
        for num_envs, pool in self._pools.items():
            if cost is None:
                few, cost = num_envs, self._step(pool, inferencer)
                more = num_envs, cost
            elif not _is_loop(self._environment) or cost.wall * num_envs < _SLOW_S * self._few:
                more = num_envs, self._step(pool, inferencer)
            pool.close()
        assert few is not None and cost is not None and more is not None
        return CostLine.through(few, cost, *more)

    def _step(self, pool: Any, inferencer: Inferencer) -> Cost:
        cost, self.inferences[pool.num_envs] = _step(pool, inferencer)
        self.shares_core = pool.one_thread
        return cost

    def threaded(self, inferencer: Inferencer, environment: Environment) -> Cost:
        """Returns the cost of a step of all environments, in a new pool."""
        pool = environment.make_pool(self._many, self._many, range(self._many))
        cost, _ = _step(pool, inferencer)
        pool.close()
        return cost


def _is_loop(environment: Environment) -> bool:
    """Returns whether environments are stepped one after the other."""
    return getattr(getattr(environment, "pool", None), "kind", "") == "loop"


def _step(pool: Any, inferencer: Inferencer) -> tuple[Cost, float]:
    """Returns the cost of a step, and the seconds of an inference between steps.

    An actor whose environments have one thread shares a core with it: then core seconds are those
    on one core. On two, each waits for the other without giving up its core.
    """
    ids = np.arange(pool.num_envs, dtype=np.int32)
    pool.start()
    timestep = [pool.recv()]

    def infer() -> None:
        start = time.perf_counter()
        action[0] = inferencer.inference(ids, timestep[0]).action
        inferences.append(time.perf_counter() - start)

    def step() -> None:
        pool.send(action[0], pool.env_ids)
        timestep[0] = pool.recv()

    action: list[Any] = [None]
    inferences: list[float] = []
    cost = _timed(step, _STEPS_S, before=infer, with_children=True)
    seconds = statistics.median(inferences)
    if pool.one_thread:
        with on_one_core():
            cost = cost._replace(cpu=_timed(step, _STEPS_S, before=infer).cpu)
    return cost, seconds


def _inference(builder: Builder, inferencer: Inferencer, rows: int) -> Cost:
    """Returns the cost of an inference. Its core seconds are those on one core, as actors have it.

    On several, XLA's threads wait for each other, and keep their cores busy meanwhile.
    """
    ids = np.arange(rows, dtype=np.int32)
    timestep = TimeStep(*specs.zeros(specs.acting_struct(builder.task.env_spec), rows))
    inferencer.inference(ids, timestep)  # compiles
    cost = _timed(lambda: inferencer.inference(ids, timestep), _INFERENCES_S)
    with on_one_core():
        alone = _timed(lambda: inferencer.inference(ids, timestep), _INFERENCES_S)
    return cost._replace(cpu=alone.cpu)


def _update(columns: Columns, size: int, learner: Learner) -> Cost:
    keys = np.arange(size, dtype=np.uint64)
    sample = columns.sample(columns.allocate(size), np.ones(size, np.float32), keys, 0)
    timestep = sample.trajectory.timestep
    for leaf in jax.tree.leaves(sample.trajectory._replace(probability=())):
        leaf.fill(0)
    timestep.step_type.fill(StepType.MID)
    timestep.discount.fill(1.0)

    def update() -> None:
        learner.update(sample)
        jax.block_until_ready(learner.variables)

    update()  # compiles
    return _timed(update, _UPDATES_S)


def _timed(
    call: Callable[[], Any],
    budget: float,
    before: Callable[[], Any] = lambda: None,
    with_children: bool = False,
) -> Cost:
    """Returns the median cost of calls, without the time in which a busy machine gave no core.

    Args:
      call: what is timed, as often as the budget allows, at least once.
      budget: seconds to spend.
      before: called before each call.
      with_children: count the cores that child processes keep busy, in ticks.
    """
    walls: list[float] = []
    cores = queued = 0.0
    end = time.perf_counter() + budget
    children = _children_seconds() if with_children else 0.0
    while not walls or time.perf_counter() < end:
        before()
        waited, cpu, start = _queued_seconds(), time.process_time(), time.perf_counter()
        call()
        walls.append(time.perf_counter() - start)
        cores += time.process_time() - cpu
        queued += _queued_seconds() - waited
    if with_children:
        cores += _children_seconds() - children
    total = sum(walls)
    # What took cores took at least as long as on all of them.
    without = max(total - queued, cores / usable_cores())
    scale = statistics.median(walls) / total
    return Cost(scale * min(without, total), scale * cores)


def _queued_seconds() -> float:
    """Returns how long this process's threads have waited for a core."""
    seconds = 0.0
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError, IndexError):  # it has ended, or the kernel does not say
            seconds += int((task / "schedstat").read_text().split()[1]) * 1e-9
    return seconds


def _children_seconds(root: Path = Path("/proc")) -> float:
    """Returns the core seconds of this process's descendants."""
    seconds, waiting = 0.0, [os.getpid()]
    while waiting:
        pid = waiting.pop()
        try:
            for task in (root / str(pid) / "task").iterdir():
                waiting += map(int, (task / "children").read_text().split())
            stat = process_stat(pid, root)
        except OSError:  # it has ended
            continue
        if stat is not None and pid != os.getpid():
            seconds += stat.cpu
    return seconds
