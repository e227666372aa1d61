"""Tests for the clock of learning."""

import pytest

from distrl.metrics import learning_clock
from distrl.metrics.learning_clock import LearningClock


class Clock:
    """Stands in for the module `time`."""

    now = 100.0

    def monotonic(self) -> float:
        """Returns the time set."""
        return self.now


@pytest.fixture
def clock(monkeypatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(learning_clock, "time", made)
    return made


def test_seconds_since_the_first_learner_step(clock):
    learning = LearningClock()
    clock.now = 107.0
    assert learning.add(0) is None and learning.seconds == 0.0
    assert learning.add(1) == 7.0
    clock.now = 110.0
    assert learning.add(2) is None and learning.seconds == 3.0


def test_the_start_of_a_resumed_program_does_not_count(clock):
    learning = LearningClock()
    learning.restore(500, 60.0)
    clock.now = 190.0
    assert learning.add(500) is None and learning.seconds == 60.0
    assert learning.add(501) == 90.0
    clock.now = 195.0
    assert learning.seconds == 65.0
