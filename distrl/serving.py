"""An inferencer as a service: many actors' requests as one batch, and the actor's side of it."""

import struct
import threading
from typing import Any, Protocol

import jax
import numpy as np

from distrl import specs
from distrl.codec import Codec
from distrl.errors import DeadlineExceeded
from distrl.inferencer import Inferencer
from distrl.types import Inference, Nest, TimeStep

_REQUEST = struct.Struct("<iii4x")  # rows, life, with_state; 8-byte aligned as the arrays are
_ANSWER = struct.Struct("<iii4x")  # rows, version, has state


class Wire:
    """The layout of requests and answers, which both ends derive from the experiment."""

    def __init__(self, env_spec: specs.EnvironmentSpec, extras: Nest, state: Nest):
        """Args: specs of the environment, and structs of the agent's extras and state."""
        stream = jax.ShapeDtypeStruct((), np.int32)
        self._request = Codec((stream, specs.timestep_struct(env_spec)), "inference request")
        self._answer = Codec((specs.struct(env_spec.action), extras), "inference answer")
        self._with_state = Codec(
            (specs.struct(env_spec.action), extras, state), "inference answer with state"
        )

    def pack_request(
        self, stream_ids: np.ndarray, timestep: TimeStep, life: int, with_state: bool
    ) -> bytes:
        """See `unpack_request`."""
        timestep = timestep._replace(env_id=(), env_info=(), untransformed=())
        header = _REQUEST.pack(len(stream_ids), life, with_state)
        return header + self._request.pack((stream_ids, timestep))

    def unpack_request(self, data: bytes) -> tuple[np.ndarray, TimeStep, int, bool]:
        """`(stream_ids, timestep, life, with_state)`."""
        n, life, with_state = _REQUEST.unpack_from(data)
        stream_ids, timestep = self._request.unpack(data, n, _REQUEST.size)
        return stream_ids, timestep, life, bool(with_state)

    def pack_answer(self, n: int, answer: Inference) -> bytes:
        """See `unpack_answer`."""
        header = _ANSWER.pack(n, answer.version, answer.state is not None)
        if answer.state is None:
            return header + self._answer.pack((answer.action, answer.extras))
        return header + self._with_state.pack((answer.action, answer.extras, answer.state))

    def unpack_answer(self, data: bytes) -> Inference:
        """The answer's `Inference`."""
        n, version, has_state = _ANSWER.unpack_from(data)
        if not has_state:
            action, extras = self._answer.unpack(data, n, _ANSWER.size)
            return Inference(action, extras, version)
        action, extras, state = self._with_state.unpack(data, n, _ANSWER.size)
        return Inference(action, extras, version, state)


class _Request:
    """One caller's request, and where its answer is put."""

    def __init__(self, stream_ids: np.ndarray, timestep: TimeStep, life: int, with_state: bool):
        self.stream_ids = stream_ids
        self.timestep = timestep
        self.life = life
        self.with_state = with_state
        self.wake = threading.Lock()  # released when answered, failed, or to lead
        self.wake.acquire()
        self.answer: Inference | None = None
        self.error: BaseException | None = None


class InferenceService:
    """Batches concurrent requests for one `Inferencer`; called from many server threads.

    Whatever has arrived while a batch ran is the next batch: it waits for no one, so a dead
    caller costs nothing, and an idle service answers at once. There is no thread of its own: a
    caller who finds it idle runs the batch, and the first who waits runs the next one.
    """

    def __init__(self, inferencer: Inferencer, wire: Wire, max_batch: int, timeout: float):
        """Args:
        inferencer: what runs the batches.
        wire: the layout of requests and answers.
        max_batch: rows of one batch at most.
        timeout: seconds that a request may wait for its answer.
        """
        self._inferencer = inferencer
        self._wire = wire
        self._max_batch = max_batch
        self._timeout = timeout
        self._lock = threading.Lock()
        self._waiting: list[_Request] = []
        self._busy = False
        self.batches = 0
        self.requests = 0

    def inference(self, data: bytes) -> bytes:
        """Answers a packed request.

        Raises:
          SpecError: the request's length is wrong; it reaches no batch.
          DeadlineExceeded: no answer within `timeout`.
        """
        request = _Request(*self._wire.unpack_request(data))
        with self._lock:
            self._waiting.append(request)
            lead = not self._busy
            self._busy = True
        if not lead:
            if not request.wake.acquire(timeout=self._timeout):
                self._give_up(request)
            lead = request.answer is None and request.error is None
        if lead:
            self._lead()
        if request.error is not None:
            raise request.error
        assert request.answer is not None
        return self._wire.pack_answer(len(request.stream_ids), request.answer)

    def _give_up(self, request: _Request) -> None:
        """Raises DeadlineExceeded, unless the request was woken at the last moment."""
        with self._lock:
            if request.wake.acquire(blocking=False):
                return
            if request in self._waiting:
                self._waiting.remove(request)
        raise DeadlineExceeded(
            f"inference: no answer for {len(request.stream_ids)} streams in "
            f"{self._timeout:g} s; the batch before it has not ended"
        )

    def _lead(self) -> None:
        """Runs one batch of what waits, then hands the lead to the first who waits still."""
        with self._lock:
            batch: list[_Request] = []
            rows = 0
            while self._waiting and (
                not batch or rows + len(self._waiting[0].stream_ids) <= self._max_batch
            ):
                batch.append(self._waiting.pop(0))
                rows += len(batch[-1].stream_ids)
        self.batches += 1
        self.requests += len(batch)
        try:
            self._run(batch)
        except BaseException as error:
            for request in batch:
                request.error = error
        with self._lock:
            if self._waiting:
                self._waiting[0].wake.release()
            else:
                self._busy = False
        for request in batch:
            if request.wake.locked():
                request.wake.release()

    def _run(self, batch: list[_Request]) -> None:
        with_state = any(request.with_state for request in batch)
        if len(batch) == 1:
            (request,) = batch
            request.answer = self._inferencer.inference(
                request.stream_ids, request.timestep, request.life, with_state
            )
            return
        answer = self._inferencer.inference(
            np.concatenate([request.stream_ids for request in batch]),
            jax.tree.map(lambda *rows: np.concatenate(rows), *(r.timestep for r in batch)),
            np.concatenate([np.full(len(r.stream_ids), r.life) for r in batch]),
            with_state,
        )
        start = 0
        for request in batch:
            rows = slice(start, start + len(request.stream_ids))
            start = rows.stop
            state = (
                jax.tree.map(lambda leaf, rows=rows: leaf[rows], answer.state)
                if request.with_state
                else None
            )
            action, extras = jax.tree.map(
                lambda leaf, rows=rows: leaf[rows], (answer.action, answer.extras)
            )
            request.answer = Inference(action, extras, answer.version, state)


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
