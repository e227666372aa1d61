"""A lock and wake-ups in shared memory, among processes that may die at any instruction. Linux.

The lock is a robust POSIX mutex: when its holder dies the kernel gives it to the next who asks,
and says so. Wake-ups are futexes, since POSIX condition variables are not robust.
"""

import ctypes
import errno
import os
import platform
import sys
import time
from collections.abc import Callable
from types import TracebackType

from distrl.errors import ConfigError, DeadlineExceeded, Stopped

if sys.platform != "linux":
    raise ImportError("replay in shared memory needs Linux: robust mutexes and futexes")

LOCK_BYTES = 128  # the mutex, 40 or 48 bytes; then two words:
_DAMAGED = 64  # offset of one that says that the data needs repair
_CHANGES = 72  # and of a count of changes to what every process has a copy of

_PTHREAD_PROCESS_SHARED = 1
_PTHREAD_MUTEX_ROBUST = 1
_FUTEX_WAIT, _FUTEX_WAKE = 0, 1
_SYS_FUTEX = 98 if platform.machine() in ("aarch64", "riscv64") else 202
_SLICE = 0.25  # seconds; between them a signal's handler can run
_PATIENCE = 60.0  # seconds; the longest critical section is a repair, far below one


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))

    @classmethod
    def of(cls, seconds: float) -> "_Timespec":
        return cls(int(seconds), int(seconds % 1 * 1e9))


_libc = ctypes.CDLL(None, use_errno=True)  # releases the GIL: for calls that wait
_quick = ctypes.PyDLL(None)  # keeps it: for calls that never do
_trylock, _unlock = _quick.pthread_mutex_trylock, _quick.pthread_mutex_unlock
_consistent, _timedlock = _quick.pthread_mutex_consistent, _libc.pthread_mutex_timedlock
for _function in (_trylock, _unlock, _consistent):
    _function.argtypes = [ctypes.c_void_p]
_timedlock.argtypes = [ctypes.c_void_p, ctypes.POINTER(_Timespec)]
_futex_wait, _futex_wake = _libc.syscall, _quick.syscall
_futex_wait.argtypes = _futex_wake.argtypes = [
    ctypes.c_long, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32,
    ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32,
]  # fmt: skip
_futex_wait.restype = _futex_wake.restype = ctypes.c_long


class SharedLock:
    """Used as a context manager, in any thread of any process that has the memory.

    Whoever finds that the holder before it died, or left by an exception, repairs the data first.
    `Stopped` and `DeadlineExceeded` come from waits, which leave it whole, and `ConfigError` from
    checks before anything is done.
    """

    def __init__(
        self,
        address: int,
        repair: Callable[[], None],
        name: str,
        reload: Callable[[int], None] = lambda number: None,
    ):
        """Args:
        address: of `LOCK_BYTES` in shared memory, a multiple of 64.
        repair: makes the data whole, whatever was half done; called with the lock held.
        name: for messages.
        reload: makes this process's copies after the change of this number, the last one; called
          with the lock held, before `repair`.
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
        """Makes the lock; once, before anyone else has the memory."""
        attributes = ctypes.create_string_buffer(64)
        for code in (
            _libc.pthread_mutexattr_init(attributes),
            _libc.pthread_mutexattr_setpshared(attributes, _PTHREAD_PROCESS_SHARED),
            _libc.pthread_mutexattr_setrobust(attributes, _PTHREAD_MUTEX_ROBUST),
            _libc.pthread_mutex_init(ctypes.c_void_p(address), attributes),
        ):
            if code:
                raise OSError(code, f"pthread_mutex: {os.strerror(code)}")

    def acquire(self) -> None:
        """Waits for the lock.

        Raises:
          DeadlineExceeded: its holder lives, and did not let go for a minute: it is suspended.
        """
        code = _trylock(self._mutex)
        if code == errno.EBUSY:
            code = self._wait()
        if code == errno.EOWNERDEAD:
            # The mutex is made good at once; the mark stays until the data is, whoever does it.
            self._damaged.value = 1
            code = _consistent(self._mutex)
        if code:
            raise OSError(code, f"the lock of {self._name}: {os.strerror(code)}")
        if self._damaged.value or self._changes.value != self._seen:
            try:
                self._look()
            except BaseException:
                _unlock(self._mutex)
                raise

    def _look(self) -> None:
        """Reloads, and repairs; holding the lock."""
        if self.behind:
            self._reload(self._changes.value)
            self._seen = self._changes.value
        if self._damaged.value:
            self._repair()
            self._damaged.value = 0

    @property
    def behind(self) -> bool:
        """True where copies are older than the last change: `acquire` makes them anew."""
        return self._changes.value != self._seen

    def change(self, prepare: Callable[[int], None]) -> None:
        """Counts a change, and reloads; holding the lock.

        Args:
          prepare: given its number; what it does has no effect until the change is counted.
        """
        prepare(self._changes.value + 1)
        self._changes.value += 1
        self._look()

    def _wait(self) -> int:
        began = time.monotonic()
        while True:
            code = _timedlock(self._mutex, _Timespec.of(time.time() + _SLICE))
            if code != errno.ETIMEDOUT:
                return code
            if time.monotonic() - began > _PATIENCE:
                owner = ctypes.c_int32.from_address(self._mutex + 8).value  # as glibc has it
                raise DeadlineExceeded(
                    f"the lock of {self._name}: thread {owner} holds it for {_PATIENCE:g} s; is "
                    "it suspended?"
                )

    def release(self) -> None:
        """Lets go."""
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


class Event:
    """A place to wait for a change of what a `SharedLock` guards."""

    def __init__(self, address: int):
        """Args:
        address: of 4 bytes in shared memory, zero at first.
        """
        self._address = address
        self._word = ctypes.c_uint32.from_address(address)

    def read(self) -> int:
        """What `wait` takes. Read it with the lock held, and let go of the lock."""
        return self._word.value

    def wait(self, value: int, seconds: float) -> bool:
        """Waits until `change` was called since `read` gave `value`; False: the time was over."""
        if seconds <= 0:
            return self._word.value != value
        time_out = _Timespec.of(seconds)
        code = _futex_wait(
            _SYS_FUTEX, self._address, _FUTEX_WAIT, value, ctypes.addressof(time_out), None, 0
        )
        if code == 0:
            return True
        error = ctypes.get_errno()
        if error == errno.ETIMEDOUT:
            return False
        if error in (errno.EAGAIN, errno.EINTR):
            return True
        raise OSError(error, f"futex: {os.strerror(error)}")

    def change(self) -> None:
        """Ends waits that begin from now on. With the lock held."""
        self._word.value = (self._word.value + 1) & 0xFFFFFFFF

    def wake(self, count: int) -> None:
        """Ends the waits of at most `count` who wait already. After `change`, without the lock."""
        _futex_wake(_SYS_FUTEX, self._address, _FUTEX_WAKE, min(count, 2**31 - 1), None, None, 0)
