"""A learner's access to the program's gradient workers, and their distribution over the tasks."""

import concurrent.futures
import threading
from collections.abc import Sequence
from typing import Any

from distrl.experiment import Experiment
from distrl.gradients.allocator import Allocator
from distrl.gradients.comparison import check_own_loss
from distrl.gradients.team import GradientTeam
from distrl.gradients.update import SplitUpdate
from distrl.programs.build import Builder, print_line
from distrl.programs.program import NodeHandle
from distrl.programs.remote import stop_and_tick
from distrl.runtime.heartbeat import UP, current_heartbeat


def make_allocator(experiment: Experiment) -> Allocator:
    """Returns the allocator, which moves the workers between the tasks that have any."""
    learners = {
        name: task.learner
        for name, task in experiment.tasks.items()
        if task.learner.num_gradient_workers
    }
    return Allocator(
        {name: learner.num_gradient_workers for name, learner in learners.items()},
        {name: learner.batch_size for name, learner in learners.items()},
    )


def split_update(
    builder: Builder, workers: Sequence[NodeHandle], monitor: NodeHandle, stop: threading.Event
) -> SplitUpdate | None:
    """Returns a learner's update by workers; None if its task has none.

    Args:
      builder: the task's builder.
      workers: all workers of the program.
      monitor: moves workers between tasks.
      stop: event that is set when the program stops.

    Raises:
      ConfigError: shares of a batch don't give its gradients; see `check_own_loss`.
    """
    task, config = builder.task, builder.task.learner
    if not config.num_gradient_workers:
        return None
    builder.start_backend()
    agent = builder.agent
    check_own_loss(agent, task.replay.unroll_length)
    allocator = make_allocator(builder.experiment)
    team = GradientTeam(
        builder.make_share_gradients(),
        task.name,
        [_Connection(worker) for worker in workers],
        allocator.workers(task.name),
        timeout=config.gradient_timeout,
        start_timeout=config.timeout,
        should_stop=stop_and_tick(stop),
        printer=print_line,
    )
    alone = len(workers) == config.num_gradient_workers
    return SplitUpdate(agent, team, None if alone else _MonitorAllocation(monitor, task))


class _Connection:
    """A `WorkerConnection` by calls of the node."""

    def __init__(self, worker: NodeHandle):
        self.name = worker.name
        self._client = worker.client  # whose end would end its futures too
        table = current_heartbeat().table
        self._heartbeat = table.of(worker.name) if table is not None else None

    def prepare(self, request: bytes) -> "concurrent.futures.Future[bytes]":
        """See `WorkerConnection`."""
        return self._client.futures.prepare(request)

    def compute(self, request: bytes) -> "concurrent.futures.Future[bytes]":
        """See `WorkerConnection`."""
        return self._client.futures.compute(request)

    @property
    def life(self) -> int | None:
        """See `WorkerConnection`; without our launcher it is not known, and taken to run."""
        if self._heartbeat is None:
            return 0
        return self._heartbeat.life if self._heartbeat.status == UP else None


class _MonitorAllocation:
    """An `Allocation` by the monitor, to which all learners report their loads."""

    def __init__(self, monitor: NodeHandle, task: Any):
        self._client, self._task = monitor.client, task.name
        self._asked: concurrent.futures.Future[list[int]] | None = None

    def exchange(self, busy: float) -> Sequence[int] | None:
        """See `Allocation`; the answer is that to an earlier call."""
        workers = None
        if self._asked is not None:
            if not self._asked.done():
                return None
            try:
                workers = self._asked.result()
            except Exception as error:  # the monitor is about to end the program, or is busy
                print_line(f"gradient workers stay where they are: {error!r:.300}")
        self._asked = self._client.futures.gradient_workers(self._task, busy)
        return workers
