"""A pool that steps its environments in threads of this process."""

import contextlib
import queue
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from distrl.envs.pools.python_pool import LOG, PythonPool, hung, tick, workers_for
from distrl.envs.pools.slots import PoolSlots
from distrl.envs.pools.worker import Worker

_REPORT_AFTER = 2e-4  # seconds
_CLOSE_TIMEOUT = 2.0  # seconds


class ThreadPool(PythonPool):
    """A pool for environments that wait (for a network, a device, ...) or release the GIL.

    The thread of a hung environment is abandoned and can no longer write; a new thread takes over
    its other environments. An environment that ends its process (`os._exit`, a crash) ends this
    one, and one that hangs while it holds the GIL stops it; neither happens with "processes".
    """

    def __init__(self, environment: Any, num_envs: int, wait_num: int, seeds: Sequence[int]):
        """See `PythonPool`."""
        num_workers = workers_for(environment.pool.num_workers, num_envs)
        super().__init__(environment, num_envs, wait_num, seeds, num_workers=num_workers)
        self._reports: queue.SimpleQueue[list[int]] = queue.SimpleQueue()
        self._tick = tick(self._config.step_timeout)
        self._next_check = time.monotonic() + self._tick
        self._threads = [self._make_thread(index) for index in range(num_workers)]
        weakref.finalize(self, _stop, self._slots, self._threads)

    def _make_thread(self, index: int) -> "_Thread":
        worker = Worker(self._environment, self._slots, index)
        return _Thread(worker, self._reports, self.is_async, f"{self.name} worker {index}")

    def _assign(self, index: int, rows: npt.NDArray[Any]) -> None:
        self._threads[index].commands.put(rows.tolist())

    def _wait(self, count: int) -> list[int]:
        try:
            rows = self._reports.get(timeout=self._tick)
        except queue.Empty:
            rows = []
        if time.monotonic() >= self._next_check:
            self._next_check = time.monotonic() + self._tick
            self._note_progress()
            for index in range(self._num_workers):
                rows = self._replace_if_hung(index, rows)
        return rows

    def _replace_if_hung(self, index: int, rows: list[int]) -> list[int]:
        """Replaces a thread if it is hung.

        Args:
          index: the thread's index.
          rows: rows that workers reported since the last `_wait`.

        Returns:
          `rows` and those that became ready by the replacement.
        """
        limit, old = self._config.step_timeout, self._threads[index]
        if not old.hangs(limit):
            return rows
        stack = old.stack()
        unreported = old.abandon(limit)
        if unreported is None:
            return rows  # its step has just ended
        rows = rows + unreported
        with contextlib.suppress(queue.Empty):
            while True:
                rows += self._reports.get_nowait()
        env_id = old.row % self.num_envs
        where = self._slots.where(env_id)
        unfinished = [row for row in self._flying(index, rows) if row != old.row]
        new = self._make_thread(index)
        new.worker.adopt(old.worker.take_environments(but=env_id))
        self._threads[index] = new
        self._dispatch(np.array(unfinished, np.int32))
        self._spend(f"{hung(where, limit)}; its stack then:\n{stack}")
        return [*rows, old.row] if self._rebuild(old.row) else rows

    def close(self) -> None:
        """See `Pool`."""
        if self._closed:
            return
        self._closed = True
        deadline = time.monotonic() + _CLOSE_TIMEOUT
        _stop(self._slots, self._threads)
        for index, thread in enumerate(self._threads):
            if not thread.join(deadline - time.monotonic()):
                LOG.error("%s: worker %d did not end within %g s of close(); it is left behind",
                          self.name, index, _CLOSE_TIMEOUT)  # fmt: skip


def _stop(slots: PoolSlots, threads: "list[_Thread]") -> None:
    """Makes the threads close their environments and end; also runs if nobody closes the pool."""
    slots.closing[0] = 1
    for thread in threads:
        thread.commands.put(None)


class _Thread:
    """A worker and the thread that runs it, until the pool closes or abandons it.

    The pool may abandon it while an environment's code runs. Rows are written and reported under
    the lock, and only unless it was abandoned.
    """

    def __init__(
        self, worker: Worker, reports: "queue.SimpleQueue[list[int]]", eager: bool, name: str
    ):
        """Args:
        worker: the worker, which has the environments.
        reports: queue for lists of rows.
        eager: report before all rows that were sent are done.
        name: the thread's name.
        """
        self.worker = worker
        self.commands: queue.SimpleQueue[list[int] | None] = queue.SimpleQueue()
        self.row = -1  # the row that is being stepped; -1: none
        self._began = 0.0
        self._done: list[int] = []  # rows not yet reported
        self._abandoned = False
        self._lock = threading.Lock()
        self._reports = reports
        self._eager = eager
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def hangs(self, limit: float) -> bool:
        """Returns whether a step has been running for more than `limit` seconds."""
        return self.row >= 0 and time.monotonic() - self._began > limit

    def abandon(self, limit: float) -> list[int] | None:
        """Removes a hung thread from the pool for good.

        Returns:
          The rows that it wrote and did not report, while `self.row` is the one in which it hangs;
          None if it does not hang.
        """
        with self._lock:
            if not self.hangs(limit):
                return None
            self._abandoned = True
            return self._done

    def stack(self) -> str:
        """Returns the thread's stack."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        return "".join(traceback.format_stack(frame)[-20:]).rstrip() if frame else "it has ended"

    def join(self, timeout: float) -> bool:
        """Waits for the thread's end. Returns whether it came; if not, the thread is abandoned."""
        self._thread.join(max(0.0, timeout))
        with self._lock:
            self._abandoned = self._thread.is_alive()
        return not self._abandoned

    def _run(self) -> None:
        worker, lock = self.worker, self._lock
        while not self._abandoned and (rows := self.commands.get()) is not None:
            reported = time.monotonic()
            for row in rows:
                if worker.closing:
                    break
                self._began = time.monotonic()
                self.row = row
                outcome = worker.advance(row)
                with lock:
                    if self._abandoned:
                        break
                    self.row = -1
                    self._done.append(worker.commit(row, outcome))
                    now = time.monotonic()
                    if self._eager and now - reported >= _REPORT_AFTER:
                        self._report()
                        reported = now
            with lock:
                if not self._abandoned:
                    worker.idle()
                    if self._done:
                        self._report()
        for text in worker.close():
            LOG.error("%s", text)

    def _report(self) -> None:
        self._reports.put(self._done)
        self._done = []
