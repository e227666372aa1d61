"""Whether a process pool costs more than it saves."""

import time

from distrl.envs.pools.python_pool import LOG
from distrl.envs.pools.slots import BUSY, DONE, Slots


class TransferCost:
    """Measures what passing steps costs, and says once where a loop would be faster.

    A step costs the caller of a loop the environment's own time. Here it costs what `send` and
    `recv` take, waiting included.
    """

    SKIP, COUNT = 100, 1000  # calls of recv: to build and warm up, and to measure

    def __init__(self, name: str, slots: Slots):
        """Args: name: of the environment. slots: of the pool."""
        self._name, self._slots = name, slots
        self._calls = self._steps = self._done = 0
        self._busy = self._spent = 0.0

    def __enter__(self) -> None:
        self._entered = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._spent += time.perf_counter() - self._entered

    def is_over(self, received: int) -> bool:
        """After each `recv` of so many steps: whether there is nothing more to measure."""
        self._calls += 1
        self._steps += received
        if self._calls not in (self.SKIP, self.SKIP + self.COUNT):
            return False
        done = int(self._slots.counters[:, DONE].sum())
        busy = float(self._slots.times[:, BUSY].sum())
        if self._calls == self.SKIP:
            self._done, self._busy, self._steps, self._spent = done, busy, 0, 0.0
            return False
        own = (busy - self._busy) / max(done - self._done, 1)
        passing = self._spent / self._steps
        if own < passing:
            LOG.warning(
                "%s: a step of the environment takes %.0f us, and passing it between processes "
                "%.0f us: environment.pool.kind=loop would be faster",
                self._name, own * 1e6, passing * 1e6,
            )  # fmt: skip
        return True
