"""Versioned parameters: their sources, and a client that keeps a copy up to date."""

import concurrent.futures
from typing import Protocol

from distrl.runtime.time_account import PARAMETER_WAIT, in_state
from distrl.types import Params


class VariableSource(Protocol):
    """Holds parameters whose version rises by one with each update."""

    def get_variables(self, newer_than: int) -> tuple[int, Params] | None:
        """Returns the newest `(version, params)`; None if `newer_than` is the newest."""


class ConstantSource:
    """A `VariableSource` of constant parameters."""

    def __init__(self, version: int, params: Params):
        self._variables = version, params

    def get_variables(self, newer_than: int) -> tuple[int, Params] | None:
        """See `VariableSource`."""
        return self._variables if self._variables[0] > newer_than else None


class VariableClient:
    """A copy of a source's parameters, refreshed every `sync_interval` calls of `update`.

    With `background`, a refresh runs in another thread and a later `update` takes its result, so
    acting never waits for the network; a source that answers immediately is asked directly.
    `update` raises the errors of a refresh.

    Attributes:
      version: the version of the parameters.
      params: the parameters.
    """

    def __init__(self, source: VariableSource, sync_interval: int = 1, background: bool = False):
        """Fetches the first parameters, waiting as long as `source` does.

        Args:
          source: gives the parameters.
          sync_interval: calls of `update` between two refreshes; the first comes one call later,
            when an unroll of that many transitions has been inserted.
          background: refresh in another thread.
        """
        self._source = source
        self._sync_interval = sync_interval
        # An unroll of T transitions is inserted after T + 1 uses, the last of which also begins the
        # next one. A refresh before that would miss what is learned while the insert waits.
        self._calls = -1
        self._is_immediate = getattr(source, "is_immediate", lambda: False)
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
            if self._executor is None or (self._future is None and self._is_immediate()):
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
