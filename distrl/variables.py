"""Versioned parameters: their sources, and a client that keeps a copy up to date."""

import concurrent.futures
import math
import threading
import time
from typing import Any, Protocol

import jax
import numpy as np

from distrl.agents.agent import Agent
from distrl.runtime.codec import Codec
from distrl.runtime.time_account import PARAMETER_WAIT, in_state
from distrl.types import Params

_VERSION_WAIT_S = 1.0  # that a call waits for parameters that do not exist yet
RELAY_S = 0.02  # by which a relay's answer may be older than the call


class VariableSource(Protocol):
    """Holds parameters whose version rises by one with each update."""

    def get_variables(self, newer_than: int) -> tuple[int, Params] | None:
        """Returns the newest `(version, params)`; None if `newer_than` is the newest."""


class VariableClient:
    """A copy of a source's parameters, refreshed every `sync_interval` calls of `update`.

    With `background`, a refresh runs in another thread and a later `update` takes its result, so
    acting never waits for the network. `update` raises the errors of a refresh.

    Attributes:
      version: the version of the parameters.
      params: the parameters.
    """

    def __init__(self, source: VariableSource, sync_interval: int = 1, background: bool = False):
        """Fetches the first parameters, waiting as long as `source` does.

        Args:
          source: where the parameters come from.
          sync_interval: calls of `update` between two refreshes; the first follows one call later,
            when an unroll of as many transitions has been inserted.
          background: refresh in another thread.
        """
        self._source = source
        self._sync_interval = sync_interval
        # An unroll of T transitions is inserted after T + 1 uses, the last of which also begins the
        # next one. A refresh before that would miss what is learned while the insert waits.
        self._calls = -1
        self._future: concurrent.futures.Future[tuple[int, Params] | None] | None = None
        self._executor = (
            concurrent.futures.ThreadPoolExecutor(1, "variables") if background else None
        )
        self.version = -1
        self.params: Params = None
        self._take(source.get_variables(-1))

    def update(self) -> None:
        """Counts one use of the parameters, and refreshes them when due."""
        if self._future is not None and self._future.done():
            future, self._future = self._future, None
            self._take(future.result())
        if self._calls >= self._sync_interval:
            if self._executor is None:
                self._calls = 0
                with in_state(PARAMETER_WAIT):
                    self._take(self._source.get_variables(self.version))
            elif self._future is None:
                self._calls = 0
                self._future = self._executor.submit(self._source.get_variables, self.version)
        self._calls += 1

    def refresh(self) -> None:
        """Fetches the newest parameters now, and waits for them."""
        with in_state(PARAMETER_WAIT):
            if self._future is not None:
                future, self._future = self._future, None
                self._take(future.result())
            self._take(self._source.get_variables(self.version))

    def close(self) -> None:
        """Ends the thread; a running refresh ends at its own deadline."""
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)

    def _take(self, answer: tuple[int, Params] | None) -> None:
        if answer is not None:
            self.version, self.params = answer


class _ParamsCodec:
    """Packs an agent's parameters into bytes, and unpacks them."""

    def __init__(self, agent: Agent):
        key = jax.ShapeDtypeStruct((2,), np.uint32)
        self._codec = Codec(jax.eval_shape(agent.initial_params, key), "parameters")

    def pack(self, params: Params) -> bytes:
        return self._codec.pack(jax.tree.map(lambda leaf: np.asarray(leaf)[None], params), 1)

    def unpack(self, data: bytes) -> Params:
        return jax.tree.map(lambda leaf: leaf[0], self._codec.unpack(data, 1))


class VariableService:
    """Serves a source's parameters to remote readers; serialises each version once."""

    def __init__(self, source: VariableSource, agent: Agent):
        """Args: source: a source in this process. agent: the parameters' agent."""
        self._source = source
        self._codec = _ParamsCodec(agent)
        self._lock = threading.Lock()
        self._packed: tuple[int, bytes] = (-1, b"")
        self._first: int = getattr(source, "version", 0)
        self._numbered: dict[int, bytes] = {}

    def get_variables(self, newer_than: int) -> tuple[int, bytes] | None:
        """Returns the newest `(version, bytes)`; None if `newer_than` is the newest.

        A reader with a newer version got it from an earlier life of this node, before it resumed
        from a checkpoint: it gets the current version.
        """
        with self._lock:
            answer = self._source.get_variables(self._packed[0])
            if answer is not None:
                version, params = answer
                self._packed = (version, self._codec.pack(params))
            return self._packed if self._packed[0] != newer_than else None

    def get_variables_at(self, number: int) -> tuple[int, bytes] | None:
        """Returns `(version, bytes)` after `number` updates since this service began.

        Waits briefly; returns None if they do not exist yet. The source must be a `Learner`, which
        keeps its newest parameters.
        """
        source: Any = self._source
        version = self._first + number
        if not source.published.wait_for(version, _VERSION_WAIT_S):
            return None
        with self._lock:
            data = self._numbered.get(version)
            if data is None:
                params = source.published.of_version(version)
                if params is None:  # not finite: the learner is about to fail
                    return None
                data = self._numbered[version] = self._codec.pack(params)
                kept = source.published.versions()
                for old in [known for known in self._numbered if known not in kept]:
                    del self._numbered[old]
            return version, data


class VariableRelay:
    """Relays a `VariableService`'s parameters, so that each version is sent to a host once.

    It has the interface of the service, and keeps the newest version it has fetched.

    Attributes:
      fetched: number of versions fetched.
    """

    def __init__(self, service: Any, interval: float = RELAY_S):
        """Args:
        service: a client of the service, with a deadline.
        interval: least seconds between the starts of two calls of the service, however many readers
          there are.
        """
        self._service = service
        self._interval = interval
        self._lock = threading.Lock()
        self._newest: tuple[int, bytes] = (-1, b"")
        self._asked = -math.inf
        self.fetched = 0

    @property
    def size(self) -> int:
        """Size of the newest version in bytes."""
        return len(self._newest[1])

    def get_variables(self, newer_than: int) -> tuple[int, bytes] | None:
        """See `VariableService.get_variables`; at most `interval` older."""
        with self._lock:  # readers that wait for it find the answer here
            now = time.monotonic()
            if now - self._asked >= self._interval:
                answer = self._service.get_variables(self._newest[0])
                self._asked = now  # what takes long may be old when it arrives
                if answer is not None:
                    self._newest = answer
                    self.fetched += 1
            return self._newest if self._newest[0] != newer_than else None


class RemoteVariables:
    """The `VariableSource` of a remote `VariableService`."""

    def __init__(self, service: Any, agent: Agent):
        """Args: service: a client of the service, with a deadline. agent: the parameters' agent."""
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
