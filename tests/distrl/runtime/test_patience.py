"""Waits that last as long as others work on their end; time only passes when the test says so."""

import pytest

from distrl.runtime.patience import Deadline, Patience, may_end


class Crew:
    """Workers who do what the test says."""

    def __init__(self):
        self.done = 0
        self.at_work = False
        self.here = True

    def signs(self):
        return self.done

    def busy(self):
        return self.at_work

    def present(self):
        return self.here

    def describe(self):
        return f"{self.done} pieces done"


class Wait:
    """A wait for the crew, looked at every second."""

    def __init__(self, limit, crew):
        self.now = 100.0
        self.lines = []
        self.deadline = Deadline(Patience(limit, crew, self.lines.append), lambda: self.now)

    def passes(self, seconds):
        """Whether the wait goes on for these seconds."""
        for _ in range(seconds):
            self.now += 1.0
            if self.deadline.left() <= 0:
                return False
            if self.deadline.line_due():
                assert self.deadline.tell("a batch")
        return True


@pytest.fixture
def crew():
    return Crew()


def test_a_plain_limit_is_a_deadline():
    now = [0.0]
    deadline = Deadline(2.0, lambda: now[0])
    now[0] = 1.5
    assert deadline.left() == 0.5
    now[0] = 2.0
    assert (deadline.left(), deadline.reason()) == (0.0, "nothing in 2 s")
    assert Deadline(None).left() == float("inf")
    assert not deadline.tell("a batch")


def test_a_wait_lasts_as_long_as_the_workers_do(crew):
    wait = Wait(10.0, crew)
    crew.at_work = True
    assert wait.passes(5000)
    crew.at_work = False  # they wait as well
    assert wait.passes(9)
    crew.done += 1
    assert wait.passes(9)
    assert not wait.passes(2)
    assert wait.deadline.reason() == "no sign of progress in 10 s; 1 pieces done"


def test_it_is_told_at_growing_intervals(crew):
    wait = Wait(10.0, crew)
    crew.at_work = True
    assert wait.passes(500)
    told = [30, 60, 120, 240, 480]
    line = "a batch: waiting for {} s so far; 0 pieces done"
    assert wait.lines == [line.format(seconds) for seconds in told]


def test_workers_that_are_not_there_yet_may_end_a_wait(crew):
    assert may_end(Patience(1.0, crew))
    crew.here = False
    assert not may_end(Patience(1.0, crew))
    assert not may_end(1.0)


def test_as_a_number_it_is_the_limit(crew):
    assert Patience(2.5, crew) == 2.5
