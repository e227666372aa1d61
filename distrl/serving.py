"""An inferencer as a service: many actors' requests as one batch, and the actor's side of it."""

import queue
import threading
from collections.abc import Callable
from typing import Any, Protocol

import jax
import numpy as np

from distrl.errors import DeadlineExceeded
from distrl.inferencer import Inferencer
from distrl.types import Inference, TimeStep
from distrl.wire import Wire


class _Request:
    """One caller's request, and where its answer is put."""

    def __init__(self, rows: np.ndarray, life: int, with_state: bool):
        self.rows = rows
        self.life = life
        self.with_state = with_state
        self.answered = threading.Lock()  # released when there is an answer or an error
        self.answered.acquire()
        self.answer = b""
        self.error: BaseException | None = None


class InferenceService:
    """Batches concurrent requests for one `Inferencer`.

    `inference` is called from many server threads, `run` from one, which runs the batches:
    servers come and go with their threads, and JAX is several times slower in a new thread.
    Whatever has arrived while a batch ran is the next batch. It waits for no one, so a dead caller
    costs nothing and an idle service answers at once.
    """

    def __init__(self, inferencer: Inferencer, wire: Wire, max_batch: int, timeout: float):
        """Args:
        inferencer: what runs the batches; made with the same wire.
        wire: the layout of requests and answers.
        max_batch: rows of one batch at most.
        timeout: seconds that a request may wait for its answer.
        """
        self._inferencer = inferencer
        self._wire = wire
        self._max_batch = max_batch
        self._timeout = timeout
        self._waiting: queue.SimpleQueue[_Request] = queue.SimpleQueue()
        self.batches = 0
        self.requests = 0

    def inference(self, data: bytes) -> bytes:
        """Answers a packed request.

        Raises:
          SpecError: the request's length is wrong; it reaches no batch.
          DeadlineExceeded: no answer within `timeout`.
        """
        request = _Request(*self._wire.request_rows(data))
        self._waiting.put(request)
        if not request.answered.acquire(timeout=self._timeout):
            raise DeadlineExceeded(
                f"inference: no answer for {len(request.rows)} streams in "
                f"{self._timeout:g} s; the batch before it has not ended"
            )
        if request.error is not None:
            raise request.error
        return request.answer

    def run(self, should_stop: Callable[[], bool]) -> None:
        """Runs batches until `should_stop()`, which is asked after each and ten times a second."""
        held = None  # it did not fit into the batch before
        while not should_stop():
            try:
                first = held or self._waiting.get(timeout=0.1)
            except queue.Empty:  # time to ask should_stop again
                continue
            batch, rows, held = [first], len(first.rows), None
            while held is None and not self._waiting.empty():
                request = self._waiting.get()
                if rows + len(request.rows) > self._max_batch:
                    held = request
                else:
                    batch.append(request)
                    rows += len(request.rows)
            self._serve(batch)

    def _serve(self, batch: list[_Request]) -> None:
        """Runs one batch. An error is its callers' to raise."""
        self.batches += 1
        self.requests += len(batch)
        try:
            self._run(batch)
        except Exception as error:
            for request in batch:
                request.error = error
        for request in batch:
            request.answered.release()

    def _run(self, batch: list[_Request]) -> None:
        with_state = any(request.with_state for request in batch)
        rows = batch[0].rows
        life: int | np.ndarray = batch[0].life
        if len(batch) > 1:
            rows = np.concatenate([request.rows for request in batch])
            life = np.repeat([r.life for r in batch], [len(r.rows) for r in batch])
        answers, version, states = self._inferencer.infer_rows(rows, life, with_state)
        end = 0
        for request in batch:
            start, end = end, end + len(request.rows)
            state = None
            if request.with_state:
                own = jax.tree.map(lambda leaf, s=start, e=end: leaf[s:e], states)
                state = self._wire.state.pack(own, end - start)
            request.answer = self._wire.pack_answer(answers[start:end], version, state)


class _Service(Protocol):
    def inference(self, data: bytes) -> bytes: ...


class RemoteInferencer:
    """An inferencer elsewhere, with `Inferencer`'s interface."""

    def __init__(self, service: _Service | Any, wire: Wire):
        """Args:
        service: a client of an `InferenceService`, with a deadline of its own.
        wire: the layout of requests and answers.
        """
        self._service = service
        self._wire = wire

    def inference(
        self, stream_ids: np.ndarray, timestep: TimeStep, life: int = 0, with_state: bool = False
    ) -> Inference:
        """See `Inferencer.inference`."""
        data = self._wire.pack_request(stream_ids, timestep, life, with_state)
        return self._wire.unpack_answer(self._service.inference(data))
