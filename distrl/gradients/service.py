"""A gradient worker: computes shares of any learner's batches.

It can lose all of its state: it caches what learners send, and they know what it has.
"""

import concurrent.futures
import queue
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from distrl.errors import Stopped
from distrl.gradients.layout import MessageLayout
from distrl.gradients.memory import MemoryAddress, map_memory
from distrl.gradients.messages import pack, unpack
from distrl.gradients.shares import BatchFacts, Extent, ShareGradients
from distrl.runtime.time_account import COMPUTE, IDLE, TRANSFER, in_state

_ANSWER_S = 600.0  # for the main thread to begin a call
_LOOK_S = 1.0  # how long `prepare` waits for a compilation before it answers "not yet"
_POLL_S = 0.1
NONE = -1  # the inputs' number of a worker that has none


class _Team:
    """What the worker knows about one learner."""

    def __init__(self, name: str, memory: npt.NDArray[Any] | None, inputs: int):
        self.name, self.memory = name, memory
        self.number = NONE  # number of the inputs
        self.inputs: list[Any] = [None] * inputs


class GradientService:
    """Serves `prepare` and `compute` to learners; the work is done in the thread of `run`.

    XLA is several times slower in a new thread, and gRPC starts one for a call.
    """

    def __init__(self, make_gradients: Callable[[str], ShareGradients]):
        """Args: make_gradients: makes a task's gradients, given its name."""
        self._make_gradients = make_gradients
        self._gradients: dict[str, ShareGradients] = {}
        self._teams: dict[str, _Team] = {}  # by task
        self._preparing: dict[str, concurrent.futures.Future[Any]] = {}
        self._work: queue.Queue[tuple[concurrent.futures.Future[Any], Callable[[], Any]]] = (
            queue.Queue()
        )
        self.computed = 0  # number of shares

    def prepare(self, request: bytes) -> bytes:
        """Gets ready for a learner's shares; answers soon, perhaps that it is not ready yet.

        Args: request: names the task, the team, the sizes of shares, the memory's address.
        """
        header, _ = unpack(request)
        task, key = header["task"], json_key(header)
        job = self._preparing.get(key)
        if job is None:
            job = self._preparing[key] = self._submit(lambda: self._prepare(header))
        concurrent.futures.wait([job], _LOOK_S)
        if not job.done():
            return pack({"ready": False})
        self._preparing.pop(key, None)
        job.result()
        team = self._teams[task]
        return pack({"ready": True, "shared": team.memory is not None})

    def compute(self, request: bytes) -> bytes:
        """Returns the gradients of a share, or a header that says that the team is not known."""
        return self._submit(lambda: self._timed_compute(request)).result(_ANSWER_S)

    def run(self, should_stop: Callable[[], bool], waits: Callable[[], None]) -> None:
        """Works until `should_stop()`.

        Args:
          should_stop: asked before each piece of work.
          waits: called before each wait for work.
        """
        while not should_stop():
            waits()
            try:
                with in_state(IDLE):
                    future, function = self._work.get(timeout=_POLL_S)
            except queue.Empty:
                continue
            should_stop()  # it also records that the node works
            try:
                future.set_result(function())
            except Exception as error:  # for the learner, which has the share computed elsewhere
                future.set_exception(error)
        while not self._work.empty():
            self._work.get()[0].set_exception(Stopped("the gradient worker stops"))

    def _submit(self, function: Callable[[], Any]) -> concurrent.futures.Future[Any]:
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self._work.put((future, function))
        return future

    def _prepare(self, header: dict[str, Any]) -> None:
        task = header["task"]
        if task not in self._gradients:
            self._gradients[task] = self._make_gradients(task)
        gradients = self._gradients[task]
        for size in header["sizes"]:
            gradients.compile(size)
        team = self._teams.get(task)
        if team is None or team.name != header["team"]:
            memory = map_memory(MemoryAddress(*header["memory"]))
            count = len(gradients.inputs.views(np.empty(gradients.inputs.nbytes, np.uint8)))
            self._teams[task] = _Team(header["team"], memory, count)

    def _timed_compute(self, request: bytes) -> bytes:
        with in_state(TRANSFER):
            return self._compute(request)

    def _compute(self, request: bytes) -> bytes:
        header, block = unpack(request)
        team = self._teams.get(header["task"])
        if team is None or team.name != header["team"]:
            return pack({"known": False})
        gradients = self._gradients[header["task"]]
        if team.number not in (header["base"], header["number"]) and header["base"] != NONE:
            return pack({"known": False})
        began = time.monotonic()
        extent, changed = Extent(*header["extent"]), header["changed"]
        shared = team.memory if "result" in header else None
        if shared is not None:
            news = gradients.inputs.views(shared, header["inputs"])
            arrays = [news[index] for index in changed]
            share = gradients.share_layout(extent.size).views(shared, header["share"])
        else:
            structs = gradients.inputs_of(changed) + gradients.batch_structs(extent.size)
            arrays = MessageLayout(structs).views(block)
            share = arrays[len(changed) :]
        for index, array in zip(changed, arrays):
            team.inputs[index] = np.array(array)  # a copy: the learner overwrites its memory
        team.number = header["number"]
        with in_state(COMPUTE):
            results = gradients(team.inputs, share, extent, BatchFacts(*header["facts"]))
            leaves = [np.asarray(leaf) for leaf in results]
        layout = gradients.outputs(extent.size)
        to = shared if shared is not None else np.empty(layout.nbytes, np.uint8)
        layout.write(leaves, to, header.get("result", 0))
        self.computed += 1
        answer = {"known": True, "seconds": time.monotonic() - began}
        return pack(answer) if shared is not None else pack(answer, to)


def json_key(header: dict[str, Any]) -> str:
    """Returns a key that tells two requests to prepare apart."""
    return f"{header['task']} {header['team']} {header['sizes']}"
