"""Waits in shared memory."""

import ctypes
import errno
import threading

from distrl.shared_memory import futex
from distrl.shared_memory.libc import Timespec


def test_threads_may_wait_for_one_event_for_different_times(monkeypatch):
    """The kernel may read a wait's timeout after another thread has begun its wait."""
    memory = ctypes.create_string_buffer(64)
    event = futex.Event(ctypes.addressof(memory))
    read = []

    def wait(number, address, operation, value, timeout, *others):
        if threading.current_thread() is threading.main_thread():
            other = threading.Thread(target=event.wait, args=(0, 0.25))
            other.start()
            other.join()
            kept = [Timespec(123456, 789) for _ in range(50)]  # where freed memory would be
            seen = Timespec.from_address(timeout)
            read.append((seen.seconds, seen.nanoseconds, len(kept)))
        ctypes.set_errno(errno.ETIMEDOUT)
        return -1

    monkeypatch.setattr(futex, "_wait", wait)
    assert not event.wait(0, 1.5)
    assert read == [(1, 500_000_000, 50)]
