"""Measures whether a process pool costs more than it saves."""

import time

from distrl.envs.pools.python_pool import LOG
from distrl.envs.pools.slots import BUSY, DONE, PoolSlots


class TransferCost:
    """Measures the cost of passing steps between processes, and warns if a loop would be faster.

    In a loop a step costs the caller the environment's own time. In a process pool it costs the
    time of `send` and `recv`, waiting included.
    """

    SKIP, COUNT = 100, 1000  # calls of recv: to warm up, and to measure

    def __init__(self, name: str, slots: PoolSlots):
        """Args: name: the environment's name. slots: the pool's slots."""
        self._name, self._slots = name, slots
        self._calls = self._steps = self._done = 0
        self._busy = self._spent = 0.0

    def __enter__(self) -> None:
        self._entered = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._spent += time.perf_counter() - self._entered

    def is_complete(self, received: int) -> bool:
        """Counts a `recv` of `received` steps. Returns whether the measurement is complete."""
        self._calls += 1
        self._steps += received
        if self._calls not in (self.SKIP, self.SKIP + self.COUNT):
            return False
        done = int(self._slots.counters[:, DONE].sum())
        busy = float(self._slots.times[:, BUSY].sum())
        if self._calls == self.SKIP:
            self._done, self._busy, self._steps, self._spent = done, busy, 0, 0.0
            return False
        step = (busy - self._busy) / max(done - self._done, 1)
        transfer = self._spent / self._steps
        if step < transfer:
            LOG.warning(
                "%s: a step of the environment takes %.0f us, and passing it between processes "
                "%.0f us: environment.pool.kind=loop would be faster",
                self._name, step * 1e6, transfer * 1e6,
            )  # fmt: skip
        return True
