"""A pool that steps its environments in processes, with observations in shared memory."""

import contextlib
import math
import os
import random
import select
import signal
import time
import weakref
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from distrl.envs.pools import threads_limit
from distrl.envs.pools.python_pool import LOG, PythonPool, hung, tick, workers_for
from distrl.envs.pools.slots import ENV, STARTED, PoolSlots
from distrl.envs.pools.transfer_cost import TransferCost
from distrl.envs.pools.worker import Worker
from distrl.envs.pools.worker_host import HostDied, WorkerHost

_REPORT_AFTER = 2e-4  # seconds
_CLOSE_TIMEOUT = 2.0  # seconds
_KILL_TIMEOUT = 10.0  # seconds
_SCHEDULE_TIMEOUT = 5.0  # seconds that an idle worker may take to start on its rows
_SIGNALS = {int(number): number.name for number in signal.Signals}
_PIPE_ROWS = 1024  # rows in one atomic write to a pipe: 4096 bytes


class ProcessPool(PythonPool):
    """A pool for environments that cost more than passing their steps between processes.

    A host process forks the workers (see `worker_host`), which get row numbers through pipes and
    everything else through shared memory. A worker that dies (`os._exit`, a crash, a kill), or is
    killed because its environment hangs, is forked again: the fault is that of the environment
    that it was stepping, and costs one restart of the budget. The worker's other environments are
    lost with it and rebuilt as well, at no cost to the budget: their open episodes end as
    truncated, at once if they are in flight, otherwise at their next `send`.

    If environments use JAX, make the pool before this process starts JAX: workers are copies of
    this process.
    """

    def __init__(self, environment: Any, num_envs: int, wait_num: int, seeds: Sequence[int]):
        """See `PythonPool`."""
        num_workers = workers_for(environment.pool.num_workers, num_envs)
        super().__init__(
            environment, num_envs, wait_num, seeds, num_workers=num_workers, shared=True
        )
        config = self._config
        self._tick = tick(config.step_timeout)
        self._next_check = time.monotonic() + self._tick
        self._reports, reports = os.pipe()
        os.set_blocking(self._reports, False)
        self._host = WorkerHost(
            _main(environment, self._slots, reports, self.is_async),
            lambda: threads_limit.apply(config.worker_threads),
            keep=[reports],
        )
        os.close(reports)
        self._commands = [-1] * num_workers
        self._finalizer = weakref.finalize(
            self, _close, self._host, self._slots, self._commands, self._reports
        )
        self._poll = select.poll()
        for fd in (self._reports, self._host.fileno()):
            self._poll.register(fd, select.POLLIN)
        self._killed: dict[int, tuple[float, str]] = {}  # by worker: time and reason
        self._quiet: dict[int, tuple[float, float]] = {}  # by worker: its STARTED, and since when
        self._transfer_cost: TransferCost | None = TransferCost(self.name, self._slots)
        for index in range(num_workers):
            self._start_worker(index)

    def _start_worker(self, index: int) -> None:
        self._slots.counters[index, ENV] = -1
        reader, writer = os.pipe()
        if self._commands[index] >= 0:
            os.close(self._commands[index])
        self._commands[index] = writer
        try:
            self._host.start(index, reader)
        except HostDied:
            self._host_died()

    def _assign(self, index: int, rows: npt.NDArray[Any]) -> None:
        # A pipe holds more rows than there are environments: this never waits. A broken pipe is
        # that of a dead worker, which the host will report.
        with contextlib.suppress(BrokenPipeError):
            os.write(self._commands[index], rows.tobytes())

    def _send(self, action: Any, env_ids: npt.NDArray[np.int32]) -> None:
        if self._transfer_cost is None:
            super()._send(action, env_ids)
            return
        with self._transfer_cost:
            super()._send(action, env_ids)

    def _recv(self) -> Any:
        if self._transfer_cost is None:
            return super()._recv()
        with self._transfer_cost:
            step = super()._recv()
        if self._transfer_cost.is_complete(self.wait_num):
            self._transfer_cost = None
        return step

    def _wait(self, count: int) -> list[int]:
        ready = [fd for fd, _ in self._poll.poll(math.ceil(self._tick * 1000))]
        rows = self._read() if self._reports in ready else []
        if self._host.fileno() in ready:
            rows = self._replace_dead(rows)
        if time.monotonic() >= self._next_check:
            self._next_check = time.monotonic() + self._tick
            self._note_progress()
            self._kill_hung(rows)
        return rows

    def _read(self) -> list[int]:
        """Returns the rows that workers have reported; does not wait."""
        rows = array("i")
        with contextlib.suppress(BlockingIOError):
            rows.frombytes(os.read(self._reports, 65536))
        return rows.tolist()

    def _kill_hung(self, rows: list[int]) -> None:
        """Kills hung workers; `_replace_dead` replaces them once they are dead."""
        now, limit = time.monotonic(), self._config.step_timeout
        for index in range(self._num_workers):
            if index in self._killed:
                killed_at, reason = self._killed[index]
                if now - killed_at > _KILL_TIMEOUT:
                    self._fail(f"{reason}, and its worker process cannot be killed")
                continue
            env_id = int(self._slots.counters[index, ENV])
            began = float(self._slots.times[index, STARTED])
            if env_id >= 0 and now - began > limit:
                reason = hung(self._slots.where(env_id), limit)
            elif env_id >= 0 or not self._flying(index, rows):
                self._quiet.pop(index, None)
                continue
            else:  # between the steps of two environments, or idle although rows were sent
                before, since = self._quiet.setdefault(index, (began, now))
                if before != began:
                    del self._quiet[index]
                if before != began or now - since <= limit + _SCHEDULE_TIMEOUT:
                    continue
                reason = f"{self.name}: worker {index} has not answered for {now - since:.1f} s"
            try:
                stack = self._host.stack(index)
                self._host.kill(index)
            except HostDied:
                self._host_died()
            reason += f"; its stack then:\n{stack or 'it does not answer'}"
            self._killed[index] = (now, reason)

    def _replace_dead(self, rows: list[int]) -> list[int]:
        """Replaces dead workers; returns `rows` with those that arrived or became ready by that."""
        try:
            deaths = self._host.deaths()
        except HostDied:
            self._host_died()
        rows = rows + self._read()  # what they reported before they died
        for index, status in deaths:
            rows = rows + self._replace(index, _describe(status), rows)
        return rows

    def _replace(self, index: int, ending: str, rows: list[int]) -> list[int]:
        """Replaces a dead worker by a new one; returns the rows that became ready by that."""
        culprit = int(self._slots.counters[index, ENV])
        env_ids = range(index, self.num_envs, self._num_workers)
        _, reason = self._killed.pop(index, (0.0, ""))
        self._quiet.pop(index, None)
        if not reason and culprit >= 0:
            reason = f"{self._slots.where(culprit)}: its worker process died in it, {ending}"
        elif not reason:
            reason = (
                f"{self.name}: the worker process of environments {list(env_ids)} died, {ending}"
            )
        self._spend(reason)
        others = [env_id for env_id in env_ids if env_id != culprit]
        if others:
            LOG.warning("%s: environments %s were lost with that worker process and are rebuilt "
                        "as well", self.name, others)  # fmt: skip
        self._start_worker(index)
        flying = self._flying(index, rows)
        ready = [row for row in flying if self._rebuild(row)]
        for env_id in set(env_ids) - {row % self.num_envs for row in flying}:
            self._count(env_id)
            if self._slots.is_open(int(self._rows[env_id])):
                self._lost.add(env_id)
        return ready

    def _host_died(self) -> None:
        self._fail(
            f"{self.name}: the process that holds the workers (pid {self._host.pid}) died, and "
            "all environments with it"
        )

    def close(self) -> None:
        """See `Pool`. Environments get 2 s to close; then their processes are killed."""
        self._closed = True
        self._finalizer()


def _main(
    environment: Any, slots: PoolSlots, reports: int, eager: bool
) -> Callable[[int, int], None]:
    """Returns the main function of worker processes, which has no reference to the pool."""

    def main(index: int, commands: int) -> None:
        seed = slots.seed(index)  # the first environment's seed: workers draw different numbers
        random.seed(seed)
        np.random.seed(seed)
        if environment.pool.pin_workers:
            cores = sorted(os.sched_getaffinity(0))
            os.sched_setaffinity(0, {cores[index % len(cores)]})
        worker = Worker(environment, slots, index)
        with contextlib.suppress(BrokenPipeError):  # the program is gone
            _serve(worker, commands, reports, eager)
        for text in worker.close():
            LOG.error("%s", text)

    return main


def _serve(worker: Worker, commands: int, reports: int, eager: bool) -> None:
    """Steps the rows that come through `commands`, until that is closed.

    Args:
      worker: the worker, which has the environments.
      commands: pipe from which rows are read.
      reports: pipe to which they are written; one for all workers.
      eager: report before all received rows are done, but not more often than every 200 us.
    """
    run, done = worker.run, array("i")
    while data := os.read(commands, 65536):
        reported = time.monotonic()
        for row in array("i", data):
            if worker.closing:
                return
            done.append(run(row))
            if eager and time.monotonic() - reported >= _REPORT_AFTER:
                _report(reports, done)
                reported = time.monotonic()
        worker.idle()
        _report(reports, done)


def _report(reports: int, done: "array[int]") -> None:
    for at in range(0, len(done), _PIPE_ROWS):
        os.write(reports, done[at : at + _PIPE_ROWS])
    del done[:]


def _describe(status: int) -> str:
    """Returns a wait status in words."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return f"killed by {_SIGNALS.get(number, f'signal {number}')}"
    return f"with exit status {os.WEXITSTATUS(status)}"


def _close(host: WorkerHost, slots: PoolSlots, commands: list[int], reports: int) -> None:
    """Ends everything; also runs at exit and when a pool that nobody closed is collected."""
    if os.getpid() != host.parent:
        return  # a copy of the pool in a child process
    slots.closing[0] = 1
    for fd in commands:
        if fd >= 0:
            os.close(fd)
    host.close(_CLOSE_TIMEOUT)
    os.close(reports)
