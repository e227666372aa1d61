"""The trials of one core for client and service, with a clock that the test moves."""

import os
import threading

import pytest

from distrl.inference.same_core import CoreSetter, SameCore


@pytest.fixture
def clock():
    class Clock:
        now = 0.0

        def __call__(self):
            return self.now

    return Clock()


@pytest.mark.parametrize("shared_rate, keeps", [(3000, True), (1500, False)])
def test_the_better_is_kept_until_both_are_tried_again(clock, shared_rate, keeps):
    moves = []
    same = SameCore(clock, moves.append)

    def run(seconds):
        end = clock.now + seconds
        while clock.now < end:
            clock.now += 1 / (2000 if same.count() is None else shared_rate)

    run(4)  # five trials of each
    assert (same.count() is not None) is keeps
    assert set(moves[:9:2]) <= os.sched_getaffinity(0)
    assert moves[1:9:2] == [None] * 4
    tried = len(moves)
    assert tried == (9 if keeps else 10)
    run(25)
    assert len(moves) == tried
    run(8)  # both are tried again
    assert len(moves) > tried + 8
    assert (same.count() is not None) is keeps


def test_a_thread_is_moved_alone_and_back():
    allowed, seen = os.sched_getaffinity(0), []

    def move():
        setter, core = CoreSetter(), max(allowed)
        for where in (core, 10**6, None):
            setter.move(where)
            seen.append(os.sched_getaffinity(0))

    thread = threading.Thread(target=move)
    thread.start()
    thread.join()
    assert seen == [{max(allowed)}, {max(allowed)}, allowed]
    assert os.sched_getaffinity(0) == allowed
