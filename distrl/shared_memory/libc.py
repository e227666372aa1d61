"""The C library's calls for shared memory. Linux only."""

import ctypes
import sys

if sys.platform != "linux":
    raise ImportError("shared memory needs Linux: robust mutexes and futexes")

QUICK = ctypes.PyDLL(None)  # keeps the GIL, as `LIBC` does not: for calls that never wait


class Timespec(ctypes.Structure):
    """C's timespec."""

    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))

    @classmethod
    def of(cls, seconds: float) -> "Timespec":
        """Returns a time in seconds."""
        return cls(int(seconds), int(seconds % 1 * 1e9))
