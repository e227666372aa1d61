"""A pool that steps its environments one after the other, in the caller's thread."""

import collections
import signal
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Sequence
from types import FrameType
from typing import Any

import numpy.typing as npt

from distrl.envs.pools.python_pool import LOG, PythonPool, hung, tick
from distrl.envs.pools.slots import ENV, STARTED, PoolSlots
from distrl.envs.pools.worker import Worker
from distrl.runtime.process_exit import announce, exit_at_once

_DEBUGGERS = {"bdb", "pdb", "pydevd"}


class LoopPool(PythonPool):
    """A pool for environments that cost less than passing their steps between processes.

    An asynchronous one returns the environments in the order in which they were sent, and steps
    only those that `recv` needs.

    A hung thread cannot be interrupted: if a step takes longer than `step_timeout`, a watchdog
    prints the message with this thread's stack and ends the process with status 1, unless a
    debugger runs in that step. An environment that ends its process (`os._exit`, a crash) ends this
    one, as with "threads" and unlike with "processes".
    """

    def __init__(self, environment: Any, num_envs: int, wait_num: int, seeds: Sequence[int]):
        """See `PythonPool`."""
        super().__init__(environment, num_envs, wait_num, seeds)
        self._queue: collections.deque[int] = collections.deque()
        self._worker = Worker(environment, self._slots, catch=_faults())
        self._thread = [threading.get_ident()]
        self._stop = threading.Event()
        weakref.finalize(self, self._stop.set)
        limit = self._config.step_timeout
        self._tick = tick(limit)
        if limit < threading.TIMEOUT_MAX:
            threading.Thread(
                target=_watch,
                args=(self._slots, self._thread, self._stop, limit),
                name="distrl.envs watchdog",
                daemon=True,
            ).start()

    def _assign(self, index: int, rows: npt.NDArray[Any]) -> None:
        self._queue.extend(rows.tolist())

    def _wait(self, count: int) -> list[int]:
        self._thread[0] = threading.get_ident()
        run, take, clock = self._worker.run, self._queue.popleft, time.monotonic
        rows, until = [], clock() + self._tick
        try:
            for _ in range(count):
                rows.append(run(take()))
                if clock() >= until:
                    self._note_progress()
                    break
            return rows
        finally:
            self._worker.idle()

    def _original(self) -> BaseException | None:
        return self._worker.error

    def close(self) -> None:
        """See `Pool`."""
        if self._closed:
            return
        self._closed = True
        for text in self._worker.close():
            LOG.error("%s", text)
        self._stop.set()


def _faults() -> tuple[type[BaseException], ...]:
    """Returns the exceptions that count as an environment's fault.

    In the main thread of a script that handles signals itself, SystemExit and KeyboardInterrupt may
    be the user's Ctrl-C. Under distrl's commands no signal handler raises: there they are faults.
    """
    handler = signal.getsignal(signal.SIGINT)
    ours = handler == signal.SIG_IGN or str(getattr(handler, "__module__", "")).startswith("distrl")
    if ours or threading.current_thread() is not threading.main_thread():
        return (Exception, SystemExit, KeyboardInterrupt)
    return (Exception,)


def _watch(slots: PoolSlots, thread: list[int], stop: threading.Event, limit: float) -> None:
    """Ends the process if a step hangs. Polls the slots and changes nothing.

    Args:
      slots: the pool's slots.
      thread: one item, the identity of the thread that steps the environments.
      stop: ends the watch.
      limit: seconds that a step may take.
    """
    counters, times = slots.counters[0], slots.times[0]
    while not stop.wait(tick(limit)):
        env_id, began = int(counters[ENV]), float(times[STARTED])
        if env_id < 0 or time.monotonic() - began <= limit:
            continue
        frame = sys._current_frames().get(thread[0])
        if counters[ENV] != env_id or times[STARTED] != began or _debugged(frame):
            continue
        what = hung(slots.where(env_id), limit)
        stack = "".join(traceback.format_stack(frame)).rstrip()
        print(
            f"{what}. A pool of kind 'loop' cannot interrupt it: this "
            f"process ends. Its stack:\n{stack}",
            file=sys.stderr,
            flush=True,
        )
        announce(reason=what, unsaid=True)
        exit_at_once(1)


def _debugged(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] in _DEBUGGERS:
            return True
        frame = frame.f_back
    return False
