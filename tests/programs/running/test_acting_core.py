"""The core that acting shares with its environments' thread: while it acts, and no longer."""

import os
import threading
import time

import pytest

from distrl.programs.running import acting_core
from distrl.programs.running.acting_core import ActingCore, threads


class Tried:
    """In `SameCore`'s place: the test says when to move."""

    def __init__(self, clock, move):
        self.clock, self.move = clock, move


@pytest.fixture
def environment_thread():
    before, end = threads(), threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    (number,) = threads() - before
    yield number
    end.set()
    thread.join()


def test_both_are_on_one_core_only_while_it_acts(monkeypatch, environment_thread):
    monkeypatch.setattr(acting_core, "SameCore", Tried)
    allowed, core = os.sched_getaffinity(0), ActingCore({environment_thread})
    one = {max(allowed)}

    def places():
        return os.sched_getaffinity(0), os.sched_getaffinity(environment_thread)

    try:
        core.begin()
        assert places() == (allowed, allowed)
        core._same_core.move(max(allowed))
        assert places() == (one, one)
        core.end()
        assert places() == (allowed, one)
        core.begin()
        assert places() == (one, one)
        core._same_core.move(None)
        assert places() == (allowed, allowed)
        core.end()
        core.begin()
        assert places() == (allowed, allowed)
    finally:
        os.sched_setaffinity(0, allowed)


def test_a_thread_that_has_ended_is_ignored(monkeypatch):
    monkeypatch.setattr(acting_core, "SameCore", Tried)
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()
    allowed, core = os.sched_getaffinity(0), ActingCore({thread.native_id})
    try:
        core._same_core.move(max(allowed))
        assert os.sched_getaffinity(0) == {max(allowed)}
        core._same_core.move(None)
    finally:
        os.sched_setaffinity(0, allowed)


def test_the_time_that_counts_is_that_of_acting(monkeypatch):
    monkeypatch.setattr(acting_core, "SameCore", Tried)
    core = ActingCore(set())
    assert core._same_core.clock() == 0.0
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    for acting, learning in ((1.0, 50.0), (2.0, 70.0)):
        core.begin()
        now[0] += acting
        core.end()
        now[0] += learning
    core.begin()
    now[0] += 4.0
    assert core._same_core.clock() == 7.0
