"""Signals that come while a program of one process begins or ceases to listen to them."""

import select
import signal
import threading
import time
import types

import pytest

from distrl.launch.local import stop_on_signals
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


def test_later_signals_do_not_prolong_the_grace_period(by_others, monkeypatch):
    now, timeouts, stop = 0.0, [], threading.Event()

    def wait(reading, writing, failing, timeout):
        timeouts.append(timeout)
        return select.select(reading, writing, failing, timeout)

    def wait_for(number):
        deadline = time.monotonic() + 20.0
        while len(timeouts) < number:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    monkeypatch.setattr(stop_on_signals, "select", types.SimpleNamespace(select=wait))
    clock = types.SimpleNamespace(monotonic=lambda: now)
    monkeypatch.setattr(stop_on_signals, "time", clock)
    with StopOnSignals(stop, 600.0, lambda number: None):
        wait_for(1)
        for number, now in enumerate([0.0, 400.0, 700.0], 2):  # noqa: B007  # the clock's
            signal.raise_signal(signal.SIGTERM)
            wait_for(number)
    assert timeouts[:4] == [None, 600.0, 200.0, 0.0]


@pytest.mark.parametrize("name", ["signal", "set_wakeup_fd"])
def test_one_that_comes_at_the_end_is_heard(by_others, monkeypatch, name):
    with StopOnSignals(threading.Event(), 600.0, lambda number: None) as listening:
        raise_after(monkeypatch, name)
    assert signal.SIGTERM in (*by_others, *listening.caught)
