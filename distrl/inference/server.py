"""A server that batches the inference requests of many actors, and its client."""

import collections
import threading
import time
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from distrl.errors import DeadlineExceeded
from distrl.inference.batched_service import BatchedService
from distrl.inference.messages import InferenceMessages
from distrl.inferencer import Inferencer
from distrl.runtime.durations import longest_wait
from distrl.runtime.heartbeat import Heartbeat
from distrl.runtime.time_account import IDLE, INFERENCE, in_state, use_account
from distrl.types import Inference, TimeStep


class _Request:
    """One caller's request, with its answer."""

    def __init__(self, rows: npt.NDArray[Any], life: int, with_state: bool):
        self.rows = rows
        self.life = life
        self.with_state = with_state
        self.wake = threading.Lock()  # released when the request is done, or its caller is to lead
        self.wake.acquire()
        self.done = False
        self.answer = b""
        self.error: BaseException | None = None


class InferenceServer(BatchedService):
    """Batches concurrent requests for one `Inferencer`; called from many server threads.

    Whatever has arrived while a batch ran is the next batch. It waits for no other requests, so a
    dead caller costs nothing and an idle server answers at once. It has no thread: a caller that
    finds it idle runs the batch, and then wakes the first waiting caller to run the next one.
    """

    def __init__(
        self,
        inferencer: Inferencer,
        messages: InferenceMessages,
        max_batch: int,
        timeout: float,
        heartbeat: Heartbeat | None = None,
    ):
        """Args:
        inferencer: runs the batches; its codec is `messages`.
        messages: the layout of requests and answers.
        max_batch: most rows in a batch.
        timeout: seconds that a request may wait for its answer.
        heartbeat: the node's heartbeat, which records when batches run, and has this server's
          life; None: there is none.
        """
        super().__init__(inferencer, messages, heartbeat)
        self._max_batch = max_batch
        self._timeout = longest_wait(timeout)
        self._waiting: collections.deque[_Request] = collections.deque()
        self._busy = False  # whether a caller leads, or has been woken to lead
        self._account.switch(IDLE)  # always called with the lock held, or by the leader

    def inference(self, data: bytes | memoryview) -> bytes:
        """Answers a packed request.

        Raises:
          SpecError: the request's length is wrong; it does not join a batch.
          DeadlineExceeded: no answer within `timeout`.
        """
        request = _Request(*self._messages.request_rows(data))
        with self._lock:
            self._waiting.append(request)
            lead = not self._busy
            self._busy = True
        if not lead:
            if not request.wake.acquire(timeout=self._timeout):
                self._give_up(request)
            lead = not request.done
        if lead:
            self._lead()
        if request.error is not None:
            raise request.error
        return request.answer

    def _give_up(self, request: _Request) -> None:
        """Raises DeadlineExceeded, unless the request was woken at the last moment."""
        with self._lock:
            if request.wake.acquire(blocking=False):
                return
            if request in self._waiting:
                self._waiting.remove(request)
        raise DeadlineExceeded(
            f"inference: no answer for {len(request.rows)} streams in {self._timeout:g} s; "
            "the batch before it has not finished"
        )

    def _lead(self) -> None:
        """Runs one batch, oldest request first; then wakes the next leader."""
        with self._lock:
            self._account.switch(INFERENCE)
            batch = [self._waiting.popleft()]
            rows = len(batch[0].rows)
            while self._waiting and rows + len(self._waiting[0].rows) <= self._max_batch:
                batch.append(self._waiting.popleft())
                rows += len(batch[-1].rows)
        began = time.monotonic()
        previous = use_account(self._account)
        self._serve(batch)
        use_account(previous)
        with self._lock:
            self._count(len(batch), rows, time.monotonic() - began)
            if self._waiting:
                self._waiting[0].wake.release()
            else:
                self._busy = False
                self._account.switch(IDLE)
        for request in batch[1:]:
            request.wake.release()

    def _serve(self, batch: list[_Request]) -> None:
        """Runs one batch. If it fails, all its callers raise the error."""
        self._heartbeat.tick()
        try:
            self._run(batch)
        except Exception as error:
            for request in batch:
                request.error = error
        finally:
            self._heartbeat.wait()
        for request in batch:
            request.done = True

    def _run(self, batch: list[_Request]) -> None:
        with_state = any(request.with_state for request in batch)
        rows = batch[0].rows
        life: int | npt.NDArray[Any] = batch[0].life
        if len(batch) > 1:
            rows = np.concatenate([request.rows for request in batch])
            life = np.repeat([r.life for r in batch], [len(r.rows) for r in batch])
        answers, version, states = self._inferencer.infer_encoded(rows, len(rows), life, with_state)
        end = 0
        for request in batch:
            start, end = end, end + len(request.rows)
            state = None
            if request.with_state:
                state = self._messages.pack_states(states, start, end)
            request.answer = self._messages.pack_answer(
                answers[start:end], version, state, self._heartbeat.life
            )


class _Server(Protocol):
    def inference(self, data: bytes) -> bytes: ...

    def request_version(self, version: int) -> None: ...


class RemoteInferencer:
    """A client of an `InferenceServer`, with `Inferencer`'s interface."""

    def __init__(self, server: _Server | Any, messages: InferenceMessages):
        """Args:
        server: an `InferenceServer`, or a remote client of one that has a deadline.
        messages: the layout of requests and answers.
        """
        self._server = server
        self._messages = messages

    def inference(
        self,
        stream_ids: npt.NDArray[np.int32],
        timestep: TimeStep,
        life: int = 0,
        with_state: bool = False,
    ) -> Inference:
        """See `Inferencer.inference`."""
        with in_state(INFERENCE):  # the wait counts as INFERENCE_WAIT
            data = self._messages.pack_request(stream_ids, timestep, life, with_state)
            return self._messages.unpack_answer(self._server.inference(data))

    def request_version(self, version: int) -> None:
        """See `Inferencer.request_version`."""
        self._server.request_version(version)
