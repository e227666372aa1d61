"""An inference service for one machine, which takes requests from shared memory."""

import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from distrl.errors import SpecError, Stopped
from distrl.inference.batched_service import BatchedService
from distrl.inference.messages import ANY_CORE, HEADER, InferenceMessages
from distrl.inference.same_core import CoreSetter
from distrl.inference.slot_client import FAILED
from distrl.inference.slots import SlotFile
from distrl.inferencer import Inferencer
from distrl.runtime.heartbeat import Heartbeat
from distrl.runtime.time_account import IDLE, INFERENCE, use_account
from distrl.shared_memory.futex import Event, fence
from distrl.shared_memory.process import Process

_SLICE = 0.25  # seconds of one wait for requests, after which it checks whether to stop


class _Slot(NamedTuple):
    """A slot as the server sees it."""

    header: memoryview
    rows: npt.NDArray[Any]  # uint8 [most rows, row_bytes]
    answer: npt.NDArray[Any]
    answer_header: memoryview
    answer_rows: npt.NDArray[Any]  # uint8 [most rows, row_bytes]
    event: Event


class _Request(NamedTuple):
    """A request that waits for its answer."""

    slot: int
    number: int  # number of the slot's request
    rows: int
    life: int
    with_state: bool


class SlotServer(BatchedService):
    """Answers requests, in batches of all that have arrived; for one thread.

    Whatever has arrived while a batch ran is the next batch. It waits for no other requests.
    """

    def __init__(
        self,
        inferencer: Inferencer,
        messages: InferenceMessages,
        file: SlotFile,
        heartbeat: Heartbeat | None = None,
    ):
        """Args:
        inferencer: runs the batches; its codec is `messages`.
        messages: the layout of requests and answers.
        file: the file of the slots, which this process serves from now on.
        heartbeat: the node's heartbeat, which records when batches run, and has this server's
          life; None: there is none.
        """
        super().__init__(inferencer, messages, heartbeat)
        self._file = file
        file.server = Process.this()
        rows, row_bytes = file.sizes.rows, messages.request.row_bytes
        self._slots = [self._open(index) for index in range(file.sizes.count)]
        most = inferencer.padded_size(rows * file.sizes.count)
        self._batch = np.zeros((most, row_bytes), np.uint8)
        self._dirty = 0  # rows of the batch that are perhaps not zero
        self._core = CoreSetter()

    def _open(self, index: int) -> _Slot:
        header, rows, answer = self._file.slot(index)
        most = self._file.sizes.rows
        request_bytes = self._messages.request.row_bytes
        answer_bytes = self._messages.answer.row_bytes
        answer_rows = answer[HEADER.size : HEADER.size + most * answer_bytes]
        return _Slot(
            header.data,
            rows[: most * request_bytes].reshape(most, request_bytes),
            answer,
            answer[: HEADER.size].data,
            answer_rows.reshape(most, answer_bytes),
            self._file.answer_event(index),
        )

    def serve(self, stop: threading.Event, then: Callable[[], None] = lambda: None) -> None:
        """Answers requests until `stop` is set.

        Args:
          stop: set when the program stops.
          then: called after each batch, and after each wait of a quarter of a second.
        """
        bell, heartbeat, account = self._file.bell, self._heartbeat, self._account
        previous = use_account(account)
        try:
            while not stop.is_set():
                rung = bell.read()
                requests = self._waiting()
                if requests:
                    self._serve(requests)
                else:
                    heartbeat.wait()
                    account.switch(IDLE)
                    bell.wait(rung, _SLICE)
                then()
        finally:
            heartbeat.wait()
            account.switch(IDLE)
            use_account(previous)

    def _waiting(self) -> list[_Request]:
        """Returns the requests that wait; refuses invalid ones."""
        file, most = self._file, self._file.sizes.rows
        (indices,) = (file.requested != file.answered).nonzero()
        fence()
        requests = []
        for index in indices.tolist():
            number = int(file.requested[index])
            rows, life, with_state, core = HEADER.unpack_from(self._slots[index].header)
            self._core.move(None if core == ANY_CORE else core)
            request = _Request(index, number, rows, life, bool(with_state))
            if 0 < rows <= most:
                requests.append(request)
            else:
                self._refuse(request, SpecError(f"a request of {rows} rows; a slot has {most}"))
        return requests

    def _serve(self, requests: list[_Request]) -> None:
        """Answers requests with one batch; if that fails, with a batch for each."""
        began = time.monotonic()
        self._heartbeat.tick()
        self._account.switch(INFERENCE)
        rows = 0
        for request in requests:
            rows += request.rows
        try:
            self._run(requests, rows)
        except Stopped:
            raise
        except Exception as error:
            if len(requests) == 1:
                self._refuse(requests[0], error)
            else:  # one bad request must not fail the others
                for request in requests:
                    self._serve([request])
                return
        with self._lock:
            self._count(len(requests), rows, time.monotonic() - began)

    def _run(self, requests: list[_Request], rows: int) -> None:
        inferencer, slots = self._inferencer, self._slots
        size = inferencer.padded_size(rows)
        first = requests[0]
        with_state = first.with_state
        life: int | npt.NDArray[Any] = first.life
        if len(requests) == 1 and rows == size:
            data = slots[first.slot].rows[:rows]
        else:
            data, end = self._batch[:size], 0
            for request in requests:
                start, end = end, end + request.rows
                data[start:end] = slots[request.slot].rows[: request.rows]
                with_state |= request.with_state
            if self._dirty > end:
                self._batch[end : self._dirty] = 0
            self._dirty = end
            if inferencer.has_state and len(requests) > 1:
                life = np.repeat([r.life for r in requests], [r.rows for r in requests])
        answers, version, states = inferencer.infer_encoded(
            data, rows, life, with_state, padded=True
        )
        end = 0
        for request in requests:
            start, end = end, end + request.rows
            slot = slots[request.slot]
            slot.answer_rows[: request.rows] = answers[start:end]
            if request.with_state:
                self._put_state(slot, states, start, end)
            HEADER.pack_into(
                slot.answer_header,
                0,
                request.rows,
                version,
                request.with_state,
                self._heartbeat.life,
            )
        for request in requests:
            self._answered(request)

    def _put_state(self, slot: _Slot, states: Any, start: int, end: int) -> None:
        """Writes states after the rows of an answer."""
        data = np.frombuffer(self._messages.pack_states(states, start, end), np.uint8)
        at = HEADER.size + (end - start) * self._messages.answer.row_bytes
        slot.answer[at : at + len(data)] = data

    def _refuse(self, request: _Request, error: Exception) -> None:
        """Answers with an error."""
        slot = self._slots[request.slot]
        answer = slot.answer
        text = f"{type(error).__name__}: {error}".encode(errors="replace")
        text = text[: len(answer) - HEADER.size]
        answer[HEADER.size : HEADER.size + len(text)] = np.frombuffer(text, np.uint8)
        HEADER.pack_into(slot.answer_header, 0, len(text), 0, FAILED, self._heartbeat.life)
        self._answered(request)

    def _answered(self, request: _Request) -> None:
        """Counts an answer and wakes the client."""
        fence()
        self._file.answered[request.slot] = request.number
        self._slots[request.slot].event.wake(1)
