"""Calls whose deadline passes because the clock was set, and other failures."""

import enum

import pytest

from distrl.programs.substrate.rpc import CallError
from distrl.runtime import early_deadline
from distrl.runtime.early_deadline import call_again_if_early


class Code(enum.Enum):
    DEADLINE_EXCEEDED = 4
    UNKNOWN = 2


class CourierError(Exception):
    def __init__(self, message, code):
        super().__init__(message)
        self.code = code


class DeadlineExceededError(Exception):
    """As TensorFlow names Reverb's."""


DEADLINES = [
    CourierError("Deadline Exceeded", Code.DEADLINE_EXCEEDED),
    DeadlineExceededError("Deadline Exceeded"),
    RuntimeError("Deadline Exceeded"),
]
OTHERS = [
    CourierError("raised on the server: DeadlineExceeded: no answer", Code.UNKNOWN),
    ConnectionError("failed to connect"),
    ValueError("x" * 200 + "deadline exceeded"),
    CallError("DeadlineExceeded: no answer of the replay"),  # that the other node raised
]


def call(monkeypatch, error, seconds, timeout=60.0, times=1):
    """A call that fails after some seconds, at first; returns the calls that were made."""
    clock, calls = [0.0], []
    monkeypatch.setattr(early_deadline.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(early_deadline.time, "sleep", lambda seconds: None)

    def remote():
        clock[0] += seconds
        calls.append(clock[0])
        if len(calls) <= times:
            raise error
        return "answer"

    try:
        assert call_again_if_early(remote, timeout) == "answer"
    except type(error):
        return [*calls, "failed"]
    return calls


@pytest.mark.parametrize("error", DEADLINES, ids=repr)
def test_a_deadline_that_passes_early_is_no_failure(monkeypatch, error):
    assert call(monkeypatch, error, 1.0) == [1.0, 2.0]
    assert call(monkeypatch, error, 1.0, times=3) == [1.0, 2.0, 3.0, 4.0]
    assert call(monkeypatch, error, 20.0, times=9) == [20.0, 40.0, 60.0, "failed"]


@pytest.mark.parametrize("error", DEADLINES, ids=repr)
def test_a_deadline_that_passes_in_time_is_a_failure(monkeypatch, error):
    assert call(monkeypatch, error, 60.0) == [60.0, "failed"]
    assert call(monkeypatch, error, 1.0, timeout=None) == [1.0, "failed"]


@pytest.mark.parametrize("error", OTHERS, ids=repr)
def test_no_other_failure_is_called_again(monkeypatch, error):
    assert call(monkeypatch, error, 1.0) == [1.0, "failed"]
