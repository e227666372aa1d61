"""Serves a learner's parameters to other processes, and the client that reads them."""

import functools
import threading
from collections.abc import Callable
from typing import Any

from distrl.agents.agent import Agent
from distrl.shared_memory.board import Board
from distrl.shared_memory.published import PublishedVersions, read_version, shared_memory_domain
from distrl.types import Params
from distrl.variables.client import VariableSource
from distrl.variables.packed import Packed, PackedVersions, ParamsCodec

_VERSION_WAIT_S = 1.0  # how long a call waits for parameters that do not exist yet


class VariableService:
    """Serves a source's parameters to remote readers; serialises each version once."""

    def __init__(
        self,
        source: VariableSource,
        agent: Agent,
        files: PublishedVersions | None = None,
        make_board: Callable[[int], Board | None] | None = None,
    ):
        """Args:
        source: a source in this process.
        agent: the parameters' agent.
        files: where readers on this machine find large parameters; None: they get bytes.
        make_board: returns a `Board` for so many bytes, where readers find small parameters as
          soon as they are made, without asking; the source must be a `Learner`. If it is None, or
          returns None, there is no board.
        """
        self._source = source
        self._lock = threading.Lock()
        self._codec = ParamsCodec(agent)
        self._packed = PackedVersions(files)
        self._board: Board | None = None
        if make_board is not None and self._codec.is_small:
            self._board, self._domain = make_board(self._codec.nbytes), shared_memory_domain()
        if self._board is not None:
            learner: Any = source
            self._write_board()
            learner.published.on_change = self._write_board
        self._newest = -1
        self._before = -1  # the previous version, which a reader may be about to read
        self._first: int = getattr(source, "version", 0)

    def get_variables(self, newer_than: int, reader_domain: str = "") -> tuple[int, Packed] | None:
        """Returns the newest `(version, data)`; None if `newer_than` is the newest.

        A reader with a newer version got it from an earlier life of this node, before it resumed
        from a checkpoint: it gets the current version.

        Args:
          newer_than: the version that the reader has.
          reader_domain: the reader's `shared_memory_domain()`; readers of this machine may get the
            path of a file.
        """
        with self._lock:
            if self._board is not None and reader_domain == self._domain:
                version = self._board.version
                return None if version == newer_than else (version, self._board.path)
            answer = self._source.get_variables(
                self._newest if self._newest in self._packed else -1
            )
            if answer is not None:
                self._before, (self._newest, params) = self._newest, answer
                self._put(self._newest, params)
            return None if self._newest == newer_than else self._get(self._newest, reader_domain)

    def get_variables_at(self, number: int, reader_domain: str = "") -> tuple[int, Packed] | None:
        """Returns `(version, data)` after `number` updates since this service began.

        Waits briefly; returns None if they do not exist yet. The source must be a `Learner`, which
        keeps its newest parameters. Once it is done, its last ones stay, if its actors act for
        other learners.
        """
        source: Any = self._source
        version = self._first + number
        if source.is_done and source.drops_when_done:
            version = min(version, source.version)
        if not source.published.wait_for(version, _VERSION_WAIT_S):
            return None
        with self._lock:
            if version not in self._packed:
                params = source.published.of_version(version)
                if params is None:  # not finite: the learner is about to fail
                    return None
                self._put(version, params, *source.published.versions())
            return self._get(version, reader_domain)

    def close(self) -> None:
        """Removes the files; from now on readers get bytes."""
        with self._lock:
            self._packed.close()
            if self._board is not None:
                self._board.close()
                self._board = None

    def _write_board(self) -> None:
        with self._lock:
            if self._board is None:
                return
            learner: Any = self._source
            version, params = learner.published.current_to_copy()
            self._board.write(version, functools.partial(self._codec.put, params))

    def _put(self, version: int, params: Params, *kept: int) -> None:
        write = functools.partial(self._codec.put, params)
        self._packed.put(version, self._codec.nbytes, write)
        self._packed.keep({version, self._newest, self._before, *kept})

    def _get(self, version: int, reader_domain: str) -> tuple[int, Packed]:
        return version, self._packed.get(version, reader_domain)


class RemoteVariables:
    """The `VariableSource` of a remote `VariableService`."""

    def __init__(self, service: Any, agent: Agent):
        """Args: service: a client of the service, with a deadline. agent: the parameters' agent."""
        self._service = service
        self._codec = ParamsCodec(agent)
        self._board: Board | None = None

    def is_immediate(self) -> bool:
        """Whether `get_variables` takes no longer than copying the parameters."""
        return self._board is not None and not self._board.is_closed

    def get_variables_at(self, number: int) -> tuple[int, Params] | None:
        """See `VariableService.get_variables_at`."""
        return self._read(-1, lambda domain: self._service.get_variables_at(number, domain))

    def get_variables(self, newer_than: int) -> tuple[int, Params] | None:
        """See `VariableSource`."""
        board = self._board
        if board is not None and not board.is_closed:
            published = board.read(newer_than)
            return published and (published[0], self._codec.to_device(published[1]))
        self._board = None
        return self._read(
            newer_than, lambda domain: self._service.get_variables(newer_than, domain)
        )

    def _read(self, newer_than: int, ask: Callable[[str], Any]) -> tuple[int, Params] | None:
        for asks_as in (shared_memory_domain(), shared_memory_domain(), ""):
            answer = ask(asks_as)
            if answer is None:
                break
            version, data = answer
            try:
                if isinstance(data, bytes):
                    return version, self._codec.to_device(data)
                if not self._codec.is_small:
                    return version, self._codec.to_device(read_version(data))
                board = Board.open(data)
            except FileNotFoundError:
                continue  # a newer version has replaced it; bytes do not vanish
            self._board = board
            return self.get_variables(newer_than)
        return None
