"""Waits in shared memory for processes that may die at any instruction. Linux only.

They are futexes, because POSIX condition variables are not robust.
"""

import ctypes
import errno
import os
import platform

from distrl.runtime.posix import LIBC
from distrl.shared_memory.libc import QUICK, Timespec

_FUTEX_WAIT, _FUTEX_WAKE, _FUTEX_WAKE_OP = 0, 1, 5
_ADD_ONE = 1 << 28 | 1 << 12  # FUTEX_OP(FUTEX_OP_ADD, 1, FUTEX_OP_CMP_EQ, 0)
_SYS_FUTEX = 98 if platform.machine() in ("aarch64", "riscv64") else 202
_wait, _wake = LIBC.syscall, QUICK.syscall
_wait.argtypes = _wake.argtypes = [
    ctypes.c_long, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32,
    ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32,
]  # fmt: skip
_wait.restype = _wake.restype = ctypes.c_long
# Other processors may show another process's writes in another order.
_KEEPS_ORDER = platform.machine() in ("x86_64", "AMD64", "i686")
_mutex = ctypes.create_string_buffer(64)  # zeros are an unlocked mutex


def fence() -> None:
    """Makes other processes see earlier writes no later than the writes that follow."""
    if not _KEEPS_ORDER:
        for _ in range(2):  # a write may move into a critical section, but not past two
            QUICK.pthread_mutex_lock(_mutex)
            QUICK.pthread_mutex_unlock(_mutex)


class Event:
    """An event: a change of what a `SharedLock` guards."""

    def __init__(self, address: int):
        """Args:
        address: address of 4 bytes in shared memory, initially zero.
        """
        self._address = address
        self._word = ctypes.c_uint32.from_address(address)
        self._last = 0.0, Timespec()  # seconds of the last wait; one object, for other threads

    def read(self) -> int:
        """Returns the value for `wait`. Read it with the lock held, then release the lock."""
        return self._word.value

    def wait(self, value: int, seconds: float) -> bool:
        """Waits for a `change` since `read` returned `value`; returns False on timeout."""
        if seconds <= 0:
            return self._word.value != value
        last = self._last
        if seconds != last[0]:
            last = self._last = seconds, Timespec.of(seconds)
        timeout = ctypes.addressof(last[1])  # `last` keeps it, even if other threads wait
        code = _wait(_SYS_FUTEX, self._address, _FUTEX_WAIT, value, timeout, None, 0)
        if code == 0:
            return True
        error = ctypes.get_errno()
        if error == errno.ETIMEDOUT:
            return False
        if error in (errno.EAGAIN, errno.EINTR):
            return True
        raise OSError(error, f"futex: {os.strerror(error)}")

    def change(self) -> None:
        """Marks a change, so that waits with an older value return. With the lock held."""
        self._word.value = (self._word.value + 1) & 0xFFFFFFFF

    def wake(self, count: int) -> None:
        """Wakes at most `count` current waits. After `change`, without the lock."""
        _wake(_SYS_FUTEX, self._address, _FUTEX_WAKE, min(count, 2**31 - 1), None, None, 0)


class Bell:
    """A count of rings that one process waits for, and any others increase without a lock."""

    def __init__(self, address: int):
        """Args:
        address: address of 4 bytes in shared memory, initially zero.
        """
        self._event = Event(address)
        self._address = address
        self.read = self._event.read
        self.wait = self._event.wait

    def ring(self) -> None:
        """Wakes the wait, or lets the next one return at once; earlier writes are then visible.

        The kernel adds one and wakes in one call. The addition is atomic, so no ring is lost.
        """
        address = self._address
        _wake(_SYS_FUTEX, address, _FUTEX_WAKE_OP, 1, None, address, _ADD_ONE)
