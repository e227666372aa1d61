"""Keeps a learner's newest parameters, and lets only finite ones reach others."""

import collections
import math
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from distrl.learning.divergence import UpdateCheck
from distrl.runtime.joined import Joined
from distrl.runtime.time_account import COMPUTE, PUBLISH, in_state
from distrl.types import Params


class _Made(NamedTuple):
    version: int
    params: Params
    record: Any  # see `UpdateCheck`


class FiniteParams:
    """A learner's newest parameters, of which only finite ones are given out.

    Safe in any thread. Giving them out waits for the update that makes them.

    Attributes:
      on_change: called when there are new ones, by the thread that adds them.
      is_late: whether `append` holds back what it is given until its next call, or `add_held`. Then
        the learner's thread goes on while an update is computed, as `on_change` may wait for it.
        JAX must dispatch asynchronously. False unless set.
      interval: seconds after an addition in which `append` only holds back what it is given, the
        newest, until a later call, or `add_held`. 0 unless set.
    """

    def __init__(self, check: UpdateCheck, keep: int):
        """Args:
        check: the check of the updates that make the parameters.
        keep: number of the newest versions that `of_version` knows.
        """
        self._check = check
        self._changed = threading.Condition()
        self._recent: collections.deque[_Made] = collections.deque(maxlen=keep)
        self.on_change: Callable[[], None] = lambda: None
        self.is_late, self.interval = False, 0.0
        self._last_added = -math.inf
        self._held: _Made | None = None
        self._newest: _Made
        self._finite: _Made  # the newest ones that are known to be finite

    @property
    def record(self) -> Any:
        """The newest record of the check."""
        return self._newest.record

    def restart(self, version: int, params: Params, record: Any) -> None:
        """Replaces all by parameters that are finite."""
        self._held = None
        with self._changed:
            self._recent.clear()
            self._newest = self._finite = _Made(version, params, record)
            self._recent.append(self._newest)
        self.on_change()

    def append(self, version: int, params: Params, record: Any) -> None:
        """Adds what an update has made, or makes; see `is_late` and `interval`."""
        made = _Made(version, params, record)
        if self.is_late:
            self.add_held()
            self._held = made
        elif self.interval and time.monotonic() < self._last_added + self.interval:
            self._held = made
        else:
            self._held = None
            self._add(made)

    @property
    def holds(self) -> bool:
        """Whether something is held back; see `is_late` and `interval`."""
        return self._held is not None

    def add_held(self) -> None:
        """Adds what is held back, if anything is; waits for the update that makes it."""
        if self._held is not None:
            with in_state(COMPUTE):
                jax.block_until_ready(self._held.record)
            held, self._held = self._held, None
            with in_state(PUBLISH):
                self._add(held)

    def _add(self, made: _Made) -> None:
        if self.interval:
            self._last_added = time.monotonic()
        with self._changed:
            self._newest = made
            self._recent.append(made)
            self._changed.notify_all()
        self.on_change()

    def current(self) -> tuple[int, Params]:
        """Returns version and parameters: the newest, or the last ones known to be finite."""
        self._note_finite()
        return self._finite[:2]

    def current_to_copy(self) -> tuple[int, Params | Joined]:
        """As `current`, for a caller that copies them at once: as they are kept."""
        return self.current()

    def _note_finite(self) -> None:
        newest = self._newest
        if newest.version != self._finite.version and self._check.is_finite(newest.record):
            self._finite = newest

    def get(self, newer_than: int) -> tuple[int, Params] | None:
        """Returns what `current` does; None if its version is not newer than this."""
        if self._newest.version <= newer_than:
            return None
        version, params = self.current()
        return (version, params) if version > newer_than else None

    def wait_for(self, version: int, timeout: float) -> bool:
        """Returns whether this or a newer version came within `timeout` s."""
        with self._changed:
            return self._changed.wait_for(lambda: self._newest.version >= version, timeout)

    def versions(self) -> list[int]:
        """Returns the versions that `of_version` knows."""
        with self._changed:
            return [made.version for made in self._recent]

    def of_version(self, version: int) -> Params | None:
        """Returns the parameters of a known version; None if they are not finite.

        Raises:
          LookupError: the version is too old, or not made yet.
        """
        with self._changed:
            made = {made.version: made for made in self._recent}.get(version)
        if made is None:
            raise LookupError(
                f"the parameters of {version} updates are not kept; those of {self.versions()} are"
            )
        return made.params if self._check.is_finite(made.record) else None
