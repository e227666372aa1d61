"""What an exception of a callback becomes."""

import signal

import pytest

from distrl.callbacks import Callback, TaskCallbacks
from distrl.errors import CallbackError


class Raises(Callback):
    def __init__(self, error):
        self._error = error

    def on_update(self, update):
        raise self._error


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (KeyError("loss"), "Raises.on_update: KeyError: 'loss'"),
        (SystemExit(3), "Raises.on_update: SystemExit: 3"),
        (KeyboardInterrupt(), "Raises.on_update: KeyboardInterrupt"),
    ],
)
def test_the_callback_is_named(error, text):
    before = signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # not Python's own, as in a process that trains
    try:
        with pytest.raises(CallbackError) as caught:
            TaskCallbacks("task", [Raises(error)]).on_update(1, 10, {}, None)
    finally:
        signal.signal(signal.SIGINT, before)
    assert str(caught.value) == text


def test_ctrl_c_in_a_loop_of_ones_own_stays_what_it_is():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            TaskCallbacks("task", [Raises(KeyboardInterrupt())]).on_update(1, 10, {}, None)
    finally:
        signal.signal(signal.SIGINT, before)
