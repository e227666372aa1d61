"""What an exception of a callback becomes."""

import signal

import pytest

from distrl.callbacks import Callback, EndRun, TaskCallbacks
from distrl.errors import CallbackError, ConfigError


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


class Ends(Callback):
    def __init__(self, reason):
        self._reason, self.heard = reason, []

    def on_update(self, update):
        self._hear(update)

    def on_evaluation(self, scores):
        self._hear(scores)

    def on_checkpoint(self, checkpoint):
        self._hear(checkpoint)

    def _hear(self, news):
        self.heard.append(type(news).__name__)
        if self._reason:
            raise EndRun(self._reason)


def test_all_callbacks_are_called_before_the_run_ends():
    first, second, third = callbacks = [Ends("flat"), Ends(""), Ends("late")]
    reasons = []
    called = TaskCallbacks("task", callbacks, reasons.append)
    called.on_update(1, 10, {}, None)
    called.evaluated(dict.fromkeys(["evaluation_return" + x for x in ("", "_min", "_max")], 1.0))
    called.saved(None, {"version": 1, "mean_return": None})
    assert reasons == ["flat; late"] * 3
    assert first.heard == second.heard == third.heard
    assert first.heard == ["Update", "EvaluationScores", "SavedCheckpoint"]


def test_a_run_ends_for_a_reason():
    for reason in ("", " ", None, 3):
        with pytest.raises(ConfigError, match="EndRun: give the reason as a text, got"):
            EndRun(reason)
