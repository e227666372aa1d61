"""Versioned parameters: where they come from, and a client that keeps a copy fresh."""

import concurrent.futures
import math
import threading
import time
from typing import Any, Protocol

import jax
import numpy as np

from distrl.agents.agent import Agent
from distrl.runtime.codec import Codec
from distrl.types import Params

_PATIENCE = 1.0  # seconds that a call waits for parameters that are still to be made


class VariableSource(Protocol):
    """Holds parameters whose version rises by one with each update."""

    def get_variables(self, newer_than: int) -> tuple[int, Params] | None:
        """The newest `(version, params)`, or None where `newer_than` is the newest."""


class VariableClient:
    """A copy of a source's parameters, refreshed every `sync_interval` calls of `update`.

    With `background`, a refresh runs in a thread of its own and is taken by a later `update`, so
    that acting never waits for the network. Errors of a refresh are raised by `update`.
    """

    def __init__(self, source: VariableSource, sync_interval: int = 1, background: bool = False):
        """Fetches the first parameters, and waits for them as long as `source` does."""
        self._source = source
        self._sync_interval = sync_interval
        self._calls = 0
        self._future: concurrent.futures.Future[Any] | None = None
        self._executor = (
            concurrent.futures.ThreadPoolExecutor(1, "variables") if background else None
        )
        self.version = -1
        self.params: Params = None
        self._take(source.get_variables(-1))

    def update(self) -> None:
        """Counts one use of the parameters, and refreshes them when it is time."""
        if self._future is not None and self._future.done():
            future, self._future = self._future, None
            self._take(future.result())
        self._calls += 1
        if self._calls < self._sync_interval:
            return
        if self._executor is None:
            self._calls = 0
            self._take(self._source.get_variables(self.version))
        elif self._future is None:
            self._calls = 0
            self._future = self._executor.submit(self._source.get_variables, self.version)

    def refresh(self) -> None:
        """Takes the newest parameters now, and waits for them."""
        if self._future is not None:
            future, self._future = self._future, None
            self._take(future.result())
        self._take(self._source.get_variables(self.version))

    def close(self) -> None:
        """Ends the thread; a refresh under way is left to its own deadline."""
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)

    def _take(self, answer: tuple[int, Params] | None) -> None:
        if answer is not None:
            self.version, self.params = answer


class _ParamsCodec:
    """Parameters of an agent as bytes, and back."""

    def __init__(self, agent: Agent):
        key = jax.ShapeDtypeStruct((2,), np.uint32)
        self._codec = Codec(jax.eval_shape(agent.initial_params, key), "parameters")

    def pack(self, params: Params) -> bytes:
        return self._codec.pack(jax.tree.map(lambda leaf: np.asarray(leaf)[None], params), 1)

    def unpack(self, data: bytes) -> Params:
        return jax.tree.map(lambda leaf: leaf[0], self._codec.unpack(data, 1))


class VariableService:
    """A source's parameters for readers elsewhere: each version is serialised once."""

    def __init__(self, source: VariableSource, agent: Agent):
        """Args: source: in this process. agent: whose parameters they are."""
        self._source = source
        self._codec = _ParamsCodec(agent)
        self._lock = threading.Lock()
        self._packed: tuple[int, bytes] = (-1, b"")
        self._first: int = getattr(source, "version", 0)
        self._numbered: dict[int, bytes] = {}

    def get_variables(self, newer_than: int) -> tuple[int, bytes] | None:
        """The newest `(version, bytes)`, or None where `newer_than` is the newest.

        A reader that has a newer one has it of an earlier life of this node, which went on from a
        checkpoint: it gets what there is now.
        """
        with self._lock:
            answer = self._source.get_variables(self._packed[0])
            if answer is not None:
                version, params = answer
                self._packed = (version, self._codec.pack(params))
            return self._packed if self._packed[0] != newer_than else None

    def get_variables_at(self, number: int) -> tuple[int, bytes] | None:
        """`(version, bytes)` that so many updates made since this service; None: not yet.

        Needs a `Learner`, which keeps its `recent` ones. Waits some seconds at most.
        """
        source: Any = self._source
        version = self._first + number
        if not source.wait_for_version(version, _PATIENCE):
            return None
        with self._lock:
            data = self._numbered.get(version)
            if data is None:
                found = dict(source.recent)
                data = self._numbered[version] = self._codec.pack(found[version])
                for old in [known for known in self._numbered if known not in found]:
                    del self._numbered[old]
            return version, data


class VariableRelay:
    """Hands a `VariableService`'s parameters on, so that each version crosses to a host once.

    It is asked as the service itself is; what it fetches it keeps until a newer one is there.
    """

    def __init__(self, service: Any, interval: float = 0.02):
        """Args:
        service: a client, with a deadline of its own.
        interval: seconds between two questions to it, however many readers ask.
        """
        self._service = service
        self._interval = interval
        self._lock = threading.Lock()
        self._newest: tuple[int, bytes] = (-1, b"")
        self._asked = -math.inf
        self.fetched = 0

    @property
    def size(self) -> int:
        """Bytes of the newest version."""
        return len(self._newest[1])

    def get_variables(self, newer_than: int) -> tuple[int, bytes] | None:
        """See `VariableService.get_variables`; at most `interval` older than there."""
        with self._lock:  # those who wait find the answer here
            if time.monotonic() - self._asked >= self._interval:
                answer = self._service.get_variables(self._newest[0])
                self._asked = time.monotonic()
                if answer is not None:
                    self._newest = answer
                    self.fetched += 1
            return self._newest if self._newest[0] != newer_than else None


class RemoteVariables:
    """A `VariableService` elsewhere, as a VariableSource."""

    def __init__(self, service: Any, agent: Agent):
        """Args: service: a client, with a deadline of its own. agent: whose parameters they are."""
        self._service = service
        self._codec = _ParamsCodec(agent)

    def get_variables_at(self, number: int) -> tuple[int, Params] | None:
        """See `VariableService.get_variables_at`."""
        answer = self._service.get_variables_at(number)
        if answer is None:
            return None
        return answer[0], jax.device_put(self._codec.unpack(answer[1]))

    def get_variables(self, newer_than: int) -> tuple[int, Params] | None:
        """See `VariableSource`."""
        answer = self._service.get_variables(newer_than)
        if answer is None:
            return None
        version, data = answer
        return version, jax.device_put(self._codec.unpack(data))  # once, not at each use
