"""A client of an inference service on the same machine, with requests in shared memory."""

import time
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from distrl.errors import SpecError
from distrl.inference.messages import ANY_CORE, HEADER, InferenceMessages
from distrl.inference.same_core import SameCore
from distrl.inference.slots import SlotFile
from distrl.runtime.heartbeat import main_thread_heartbeat
from distrl.runtime.time_account import INFERENCE, current_account, in_state
from distrl.shared_memory.futex import fence
from distrl.types import Inference, TimeStep

FAILED = 2  # instead of `has_state` in an answer's header: the text of an error follows
_SLICE = 0.25  # seconds between two checks of whether a wait can still end


class Server(Protocol):
    """A client's view of its server, apart from the answers."""

    def request_version(self, version: int) -> None:
        """See `Inferencer.request_version`."""

    @property
    def life(self) -> int:
        """The server's life, as far as it is known."""

    def check(self, what: str, began: float) -> None:
        """Raises if a wait cannot end, or has lasted too long.

        Args:
          what: what is waited for.
          began: when the wait began, in seconds of the monotonic clock.
        """

    def wait_for_restart(self, life: int, what: str, error: Exception) -> None:
        """Waits until the server, which failed in this life, has begun another; else raises."""


class RequestFailed(RuntimeError):
    """The service could not answer a request; the message is that of its error."""


class SlotInferencer:
    """A client of a `SlotServer`, with `Inferencer`'s interface; for one thread.

    An answer is copied out of the shared memory before it is returned.
    """

    def __init__(
        self,
        file: SlotFile,
        index: int,
        messages: InferenceMessages,
        server: Server,
        same_core: SameCore | None = None,
    ):
        """Args:
        file: the file of the slots.
        index: index of the slot, which no other live process uses.
        messages: the layout of requests and answers.
        server: the service.
        same_core: may keep this thread and the service's on one core, where the service has no
          other client; None: never.
        """
        self._same_core = same_core
        self._file, self._index, self._messages, self._server = file, index, messages, server
        header, self._rows, self._answer = file.slot(index)
        self._header, self._answer_header = header.data, self._answer.data
        self._requested, self._answered = file.requested.data, file.answered.data
        self._event = file.answer_event(index)
        # Columns of requests and of answers, by number of rows.
        self._columns: dict[int, list[npt.NDArray[Any]]] = {}
        self._answer_columns: dict[int, list[npt.NDArray[Any]]] = {}
        self._heartbeat = main_thread_heartbeat()

    def inference(
        self,
        stream_ids: npt.NDArray[np.int32],
        timestep: TimeStep,
        life: int = 0,
        with_state: bool = False,
    ) -> Inference:
        """See `Inferencer.inference`.

        Raises:
          SpecError: more rows than a slot has room for.
          RequestFailed: the service could not answer.
          Exception: what the server's `check` raises.
        """
        with in_state(INFERENCE):  # the wait counts as INFERENCE_WAIT
            return self._ask(stream_ids, timestep, life, with_state)

    def _ask(
        self, stream_ids: npt.NDArray[np.int32], timestep: TimeStep, life: int, with_state: bool
    ) -> Inference:
        n = len(stream_ids)
        if n > self._file.sizes.rows:
            raise SpecError(
                f"an inference request of {n} rows; a slot has room for {self._file.sizes.rows}"
            )
        index = self._index
        if self._answered[index] != self._requested[index]:  # an earlier client's request
            self._wait(f"inference of an earlier request of {self._file.name}")
        columns = self._columns.get(n)
        if columns is None:
            rows = self._rows[: n * self._messages.request.row_bytes]
            columns = self._columns[n] = self._messages.request.columns(rows, n)
        self._messages.request.put((stream_ids, TimeStep(*timestep[:5])), columns)
        core = None if self._same_core is None else self._same_core.count()
        HEADER.pack_into(self._header, 0, n, life, with_state, ANY_CORE if core is None else core)
        while True:
            server_life = self._server.life
            fence()
            self._requested[index] = (self._requested[index] + 1) & 0xFFFFFFFF
            self._file.bell.ring()
            self._wait("inference")
            header = HEADER.unpack_from(self._answer_header)
            if header[2] != FAILED:
                return self._unpack(n, header)
            text = self._answer[HEADER.size : HEADER.size + header[0]].tobytes()
            failed = RequestFailed(text.decode(errors="replace"))
            self._server.wait_for_restart(server_life, "inference failed", failed)

    def _unpack(self, n: int, header: tuple[Any, ...]) -> Inference:
        """Returns a copy of the answer: the next one is written over it."""
        rows, version, has_state, life = header
        if rows != n:
            raise SpecError(f"asked for {n} rows, {self._file.name} answered {rows}")
        codec = self._messages.answer
        columns = self._answer_columns.get(n)
        end = HEADER.size + n * codec.row_bytes
        if columns is None:
            columns = self._answer_columns[n] = codec.columns(self._answer[HEADER.size : end], n)
        output = codec.nest([column.copy() for column in columns])
        state = None
        if has_state:
            states = self._messages.state
            copied = self._answer[end : end + n * states.row_bytes].tobytes()
            state = states.unpack(copied, n)
        return Inference(output.action, output.extras, version, state, life)

    def _wait(self, what: str) -> None:
        """Waits until all requests are answered."""
        index, requested, answered = self._index, self._requested, self._answered
        account, heartbeat = current_account(), self._heartbeat
        heartbeat.wait()
        state = account.wait()
        began, timed_out = 0.0, False
        try:
            while (value := answered[index]) != requested[index]:
                if timed_out:
                    began = began or time.monotonic() - _SLICE
                    self._server.check(what, began)
                timed_out = not self._event.wait(value, _SLICE)
        finally:
            account.switch(state)
            heartbeat.tick()
        fence()

    def request_version(self, version: int) -> None:
        """See `Inferencer.request_version`."""
        self._server.request_version(version)
