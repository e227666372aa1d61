"""A lock in shared memory for processes that may die at any instruction. Linux only.

It is a robust POSIX mutex: when its holder dies, the kernel passes it to the next waiter with
EOWNERDEAD.
"""

import ctypes
import errno
import os
import time
from collections.abc import Callable
from types import TracebackType

from distrl.errors import ConfigError, DeadlineExceeded, Stopped
from distrl.runtime.posix import LIBC
from distrl.shared_memory.libc import QUICK, Timespec

LOCK_BYTES = 128  # the mutex, 40 or 48 bytes; then two words:
_DAMAGED = 64  # offset of a flag: the data needs repair
_CHANGES = 72  # offset of a count: changes to data of which every process has a copy

_PTHREAD_PROCESS_SHARED = 1
_PTHREAD_MUTEX_ROBUST = 1
_SLICE = 0.25  # seconds; between two slices signal handlers can run
_TIMEOUT = 60.0  # seconds; the longest critical section is a repair, far below one second


_trylock, _unlock = QUICK.pthread_mutex_trylock, QUICK.pthread_mutex_unlock
_consistent, _timedlock = QUICK.pthread_mutex_consistent, LIBC.pthread_mutex_timedlock
for _function in (_trylock, _unlock, _consistent):
    _function.argtypes = [ctypes.c_void_p]
_timedlock.argtypes = [ctypes.c_void_p, ctypes.POINTER(Timespec)]
_clocklock = getattr(LIBC, "pthread_mutex_clocklock", None)  # since glibc 2.30
if _clocklock is not None:
    _clocklock.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.POINTER(Timespec)]


def _lock_within(mutex: int, seconds: float) -> int:
    """Locks a mutex; returns ETIMEDOUT after `seconds`, even if the time of day changes."""
    if _clocklock is None:
        return _timedlock(mutex, Timespec.of(time.time() + seconds))
    until = Timespec.of(time.monotonic() + seconds)
    return _clocklock(mutex, time.CLOCK_MONOTONIC, until)


class SharedLock:
    """A context manager for any thread of any process that has mapped the memory.

    If the previous holder died or left with an exception, the next one repairs the data first. This
    does not apply to `Stopped` and `DeadlineExceeded`, which come from waits that leave the data
    consistent, and `ConfigError`, which comes from checks before any change.
    """

    def __init__(
        self,
        address: int,
        repair: Callable[[], None],
        name: str,
        reload: Callable[[int], None] = lambda number: None,
    ):
        """Args:
        address: address of `LOCK_BYTES` in shared memory, a multiple of 64.
        repair: makes the data consistent after an interruption; called with the lock held.
        name: the name in messages.
        reload: updates this process's copies to the last change, given its number; called with
          the lock held, before `repair`.
        """
        self._mutex = address
        self._damaged = ctypes.c_int64.from_address(address + _DAMAGED)
        self._changes = ctypes.c_int64.from_address(address + _CHANGES)
        self._seen = 0
        self._repair = repair
        self._name = name
        self._reload = reload

    @staticmethod
    def initialise(address: int) -> None:
        """Initialises the lock; once, before any other process maps the memory."""
        attributes = ctypes.create_string_buffer(64)
        for code in (
            LIBC.pthread_mutexattr_init(attributes),
            LIBC.pthread_mutexattr_setpshared(attributes, _PTHREAD_PROCESS_SHARED),
            LIBC.pthread_mutexattr_setrobust(attributes, _PTHREAD_MUTEX_ROBUST),
            LIBC.pthread_mutex_init(ctypes.c_void_p(address), attributes),
        ):
            if code:
                raise OSError(code, f"pthread_mutex: {os.strerror(code)}")

    def acquire(self) -> None:
        """Waits for the lock.

        Raises:
          DeadlineExceeded: its holder is alive but has not released it for a minute: it is
            probably suspended.
        """
        code = _trylock(self._mutex)
        if code == errno.EBUSY:
            code = self._wait()
        if code == errno.EOWNERDEAD:
            # This makes the mutex consistent; the flag stays set until the data is, too.
            self._damaged.value = 1
            code = _consistent(self._mutex)
        if code:
            raise OSError(code, f"the lock of {self._name}: {os.strerror(code)}")
        if self._damaged.value or self._changes.value != self._seen:
            try:
                self._refresh()
            except BaseException:
                _unlock(self._mutex)
                raise

    def _refresh(self) -> None:
        """Reloads copies and repairs the data as necessary; with the lock held."""
        if self.behind:
            self._reload(self._changes.value)
            self._seen = self._changes.value
        if self._damaged.value:
            self._repair()
            self._damaged.value = 0

    @property
    def behind(self) -> bool:
        """Whether this process's copies are outdated: `acquire` reloads them."""
        return self._changes.value != self._seen

    def change(self, prepare: Callable[[int], None]) -> None:
        """Counts a change and reloads; with the lock held.

        Args:
          prepare: called with the change's number; its writes take effect with the count.
        """
        prepare(self._changes.value + 1)
        self._changes.value += 1
        self._refresh()

    def _wait(self) -> int:
        began = time.monotonic()
        while True:
            code = _lock_within(self._mutex, _SLICE)
            if code != errno.ETIMEDOUT:
                return code
            if time.monotonic() - began > _TIMEOUT:
                owner = ctypes.c_int32.from_address(self._mutex + 8).value  # as in glibc
                raise DeadlineExceeded(
                    f"the lock of {self._name}: thread {owner} has held it for {_TIMEOUT:g} s; "
                    "is it suspended?"
                )

    def release(self) -> None:
        """Releases the lock."""
        _unlock(self._mutex)

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is not None and not issubclass(kind, (Stopped, DeadlineExceeded, ConfigError)):
            self._damaged.value = 1
        _unlock(self._mutex)
