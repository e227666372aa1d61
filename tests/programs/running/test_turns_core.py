"""The core that a thread shares with those that it takes turns with, and no longer than that."""

import os
import threading
import time

import pytest

from distrl.programs.running import turns_core
from distrl.programs.running.turns_core import TurnsCore
from distrl.runtime.host_resources import native_threads


class Tried:
    """In `SameCore`'s place: the test says when to move."""

    def __init__(self, clock, move):
        self.clock, self.move = clock, move


@pytest.fixture
def environment_thread():
    before, end = native_threads(), threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    (number,) = native_threads() - before
    yield number
    end.set()
    thread.join()


def test_both_are_on_one_core_only_within_the_context(monkeypatch, environment_thread):
    monkeypatch.setattr(turns_core, "SameCore", Tried)
    allowed, core = os.sched_getaffinity(0), TurnsCore({environment_thread})
    one = {max(allowed)}

    def places():
        return os.sched_getaffinity(0), os.sched_getaffinity(environment_thread)

    try:
        core.__enter__()
        assert places() == (allowed, allowed)
        core._same_core.move(max(allowed))
        assert places() == (one, one)
        core.__exit__()
        assert places() == (allowed, one)
        core.__enter__()
        assert places() == (one, one)
        core._same_core.move(None)
        assert places() == (allowed, allowed)
        core.__exit__()
        core.__enter__()
        assert places() == (allowed, allowed)
    finally:
        os.sched_setaffinity(0, allowed)


def test_a_thread_that_has_ended_is_ignored(monkeypatch):
    monkeypatch.setattr(turns_core, "SameCore", Tried)
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()
    allowed, core = os.sched_getaffinity(0), TurnsCore({thread.native_id})
    try:
        core._same_core.move(max(allowed))
        assert os.sched_getaffinity(0) == {max(allowed)}
        core._same_core.move(None)
    finally:
        os.sched_setaffinity(0, allowed)


def test_the_time_that_counts_is_that_within_the_context(monkeypatch):
    monkeypatch.setattr(turns_core, "SameCore", Tried)
    core = TurnsCore(set())
    assert core._same_core.clock() == 0.0
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    for within, elsewhere in ((1.0, 50.0), (2.0, 70.0)):
        core.__enter__()
        now[0] += within
        core.__exit__()
        now[0] += elsewhere
    core.__enter__()
    now[0] += 4.0
    assert core._same_core.clock() == 7.0
