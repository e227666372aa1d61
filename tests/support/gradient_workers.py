"""Gradient workers in threads, which can die, fail and dawdle."""

import concurrent.futures
import contextlib
import threading
from collections.abc import Iterator

from distrl import specs
from distrl.agents.agent import Agent
from distrl.agents.structs import extras_struct, state_struct
from distrl.gradients.messages import pack, unpack
from distrl.gradients.service import GradientService
from distrl.gradients.shares import ShareGradients


def share_gradients(agent: Agent, length: int, batch_size: int) -> ShareGradients:
    struct = specs.trajectory_struct(agent.env_spec, extras_struct(agent), state_struct(agent))
    return ShareGradients(agent, struct, length, batch_size)


class ThreadWorker:
    """A `WorkerConnection` to a service in threads of this process.

    Attributes:
      life: see `WorkerConnection`.
      held: cleared, the answers to `compute` wait.
      failing: `compute` raises.
      dying: it dies at the next `compute`.
      remote: it does not see the learner's memory, as from another machine.
      sizes: of the messages that it got.
    """

    def __init__(self, name, gradients, remote=False):
        self.name, self.remote = name, remote
        self.life: int | None = 0
        self.held, self.failing, self.dying = threading.Event(), False, False
        self.held.set()
        self._gradients = gradients
        self._calls = concurrent.futures.ThreadPoolExecutor(4)
        self._stop = threading.Event()
        self.sizes: list[int] = []
        self._begin()

    def _begin(self):
        self._service = GradientService(lambda task: self._gradients)
        run = self._service.run
        self._thread = threading.Thread(target=run, args=(self._stop.is_set, lambda: None))
        self._thread.start()

    def prepare(self, request):
        if self.remote:
            header, _ = unpack(request)
            request = pack({**header, "memory": (0, 0, "")})
        return self._calls.submit(self._service.prepare, request)

    def compute(self, request):
        self.sizes.append(len(request))
        if self.dying:
            self.dying, self.life = False, None
            return concurrent.futures.Future()
        return self._calls.submit(self._compute, self._service, request)

    def _compute(self, service, request):
        if self.failing:
            raise RuntimeError("out of order")
        answer = service.compute(request)
        assert self.held.wait(60.0)
        return answer

    @property
    def computed(self) -> int:
        return self._service.computed

    def restart(self, life):
        """As after a crash: what it knew is lost."""
        self._stop.set()
        self._thread.join()
        self._stop.clear()
        self.life = life
        self._begin()

    def close(self):
        self.held.set()
        self._stop.set()
        self._thread.join()
        self._calls.shutdown()


@contextlib.contextmanager
def thread_workers(
    agent: Agent, length: int, batch_size: int, count: int, remote: bool = False
) -> Iterator[list[ThreadWorker]]:
    """Makes workers that have compiled what one of them has."""
    gradients = share_gradients(agent, length, batch_size)
    workers = [ThreadWorker(f"gradient_worker/{i}", gradients, remote) for i in range(count)]
    try:
        yield workers
    finally:
        for worker in workers:
            worker.close()
