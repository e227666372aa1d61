"""The lock's waits and the time of day."""

import ctypes
import mmap
import time

import pytest

from distrl.errors import DeadlineExceeded
from distrl.shared_memory import lock
from distrl.shared_memory.lock import LOCK_BYTES, SharedLock
from tests.support.waiting import in_thread, until


@pytest.mark.skipif(lock._clocklock is None, reason="needs glibc 2.30")
def test_a_clock_that_jumps_does_not_lengthen_a_wait(monkeypatch):
    memory = mmap.mmap(-1, 2 * LOCK_BYTES)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    shared = SharedLock(address, lambda: None, "table")
    SharedLock.initialise(address)
    monkeypatch.setattr(lock, "_SLICE", 0.01)
    monkeypatch.setattr(lock, "_TIMEOUT", 0.05)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 86_400.0)  # as if it were set back after that
    with shared:
        thread, errors = in_thread(shared.acquire)
        until(lambda: not thread.is_alive(), "the wait to end")
    (error,) = errors
    assert isinstance(error, DeadlineExceeded)
