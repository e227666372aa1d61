"""A relay, which passes parameters from another host on to the readers of its own host."""

import functools
import math
import threading
import time
from collections.abc import Callable
from typing import Any

from distrl.shared_memory.board import Board
from distrl.shared_memory.published import PublishedVersions, shared_memory_domain
from distrl.variables.packed import Packed, PackedVersions, copy_bytes, is_small

RELAY_S = 0.02  # how much older than the call a relay's answer may be


class VariableRelay:
    """Relays a `VariableService`'s parameters, so that each version is sent to a host once.

    It has the interface of the service, and keeps the newest version it has fetched. Readers on its
    host find large ones in files, and small ones on a `Board`: for it, call `refresh` regularly.

    Attributes:
      fetched: number of versions fetched.
      size: size of the newest version in bytes.
    """

    def __init__(
        self,
        service: Any,
        interval: float = RELAY_S,
        files: PublishedVersions | None = None,
        make_board: Callable[[int], Board | None] | None = None,
    ):
        """Args:
        service: a client of the service, with a deadline.
        interval: least seconds between the starts of two calls of the service, however many readers
          there are.
        files: as for `VariableService`.
        make_board: as for `VariableService`.
        """
        self._service = service
        self._interval = interval
        self._packed = PackedVersions(files)
        self._make_board, self._domain = make_board, shared_memory_domain()
        self._board: Board | None = None
        self._lock = threading.Lock()
        self._newest = -1
        self._asked = -math.inf
        self.fetched = self.size = 0

    def get_variables(self, newer_than: int, reader_domain: str = "") -> tuple[int, Packed] | None:
        """See `VariableService.get_variables`; at most `interval` older."""
        with self._lock:  # readers that waited for the lock find the answer in `_packed`
            self._fetch()
            if self._newest == newer_than:
                return None
            if reader_domain == self._domain and is_small(self.size) and self._has_board():
                assert self._board is not None
                return self._newest, self._board.path
            return self._newest, self._packed.get(self._newest, reader_domain)

    def refresh(self) -> None:
        """Fetches the newest version, if a reader looks at the board."""
        with self._lock:
            if self._board is not None:
                self._fetch()

    def _fetch(self) -> None:
        now = time.monotonic()
        if now - self._asked < self._interval:
            return
        answer = self._service.get_variables(self._newest)
        self._asked = now  # when it was asked: the answer may be old when it comes
        if answer is None:
            return
        before, (self._newest, data) = self._newest, answer
        if self._newest < before:  # the learner has resumed: it reuses the numbers of old versions
            self._packed.keep(set())
        self._packed.put_bytes(self._newest, data)
        self._packed.keep({self._newest, before})  # a reader may be about to read the previous one
        self.size = len(data)
        self.fetched += 1
        self._write_board(data)

    def _has_board(self) -> bool:
        """Makes the board the first time; returns whether there is one."""
        if self._make_board is not None:
            self._board, self._make_board = self._make_board(self.size), None
            self._write_board(self._packed.bytes_of(self._newest))
        return self._board is not None

    def _write_board(self, data: bytes) -> None:
        if self._board is not None:
            self._board.write(self._newest, functools.partial(copy_bytes, data))

    def close(self) -> None:
        """Removes files and board: from now on readers get bytes."""
        with self._lock:
            if self._newest in self._packed:  # the learner may be gone
                data = self._packed.bytes_of(self._newest)
                self._packed.close()
                self._packed.put_bytes(self._newest, data)
            if self._board is not None:
                self._board.close()
                self._board = None
