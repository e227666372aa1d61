"""Signals that come while a program of one process begins or ceases to listen to them."""

import signal
import threading

import pytest

from distrl.launch.local.stop_on_signals import StopOnSignals


@pytest.fixture
def by_others():
    """The signals that the handler of before got."""
    numbers = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: numbers.append(number))
    yield numbers
    signal.signal(signal.SIGTERM, before)


def raise_after(patch, name):
    """Has SIGTERM come once, right after the next call of a function of `signal`."""
    function, raised = getattr(signal, name), []

    def call(*args, **kwargs):
        result = function(*args, **kwargs)
        if not raised:
            raised.append(signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)
        return result

    patch.setattr(signal, name, call)


@pytest.mark.parametrize("name", ["signal", "siginterrupt"])
def test_one_that_comes_at_the_beginning_is_heard(by_others, monkeypatch, name):
    stop = threading.Event()
    raise_after(monkeypatch, name)
    with StopOnSignals(stop, 600.0, lambda number: None) as listening:
        assert stop.wait(20.0)
    assert listening.caught == [signal.SIGTERM]


@pytest.mark.parametrize("name", ["signal", "set_wakeup_fd"])
def test_one_that_comes_at_the_end_is_heard(by_others, monkeypatch, name):
    with StopOnSignals(threading.Event(), 600.0, lambda number: None) as listening:
        raise_after(monkeypatch, name)
    assert signal.SIGTERM in (*by_others, *listening.caught)
