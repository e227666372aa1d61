"""What the learner of a task does at its end, and what its callbacks hear of."""

import concurrent.futures
import types

import pytest

from distrl.callbacks import Callback, TaskCallbacks
from distrl.errors import CallbackError, PeerError
from distrl.goal import Goal
from distrl.metrics import evaluations
from distrl.metrics.monitor import Monitor
from distrl.programs.nodes.task_learner import TaskLearner


@pytest.mark.parametrize("monitor_fails", [False, True])
def test_a_failure_is_saved_whether_or_not_the_monitor_takes_the_totals(monitor_fails):
    calls = []

    class Reporter:
        def __call__(self, report):
            calls.append(report)
            if monitor_fails:
                raise PeerError("monitor/0.report() failed")

        def close(self, timeout):
            calls.append(timeout)

    part = object.__new__(TaskLearner)
    part.learner = types.SimpleNamespace(counts=lambda: {"learner_steps": 3})
    part.reporter, part._counters_timeout = Reporter(), 7.0
    part.checkpointer = types.SimpleNamespace(close=lambda: calls.append("saved"))
    if monitor_fails:
        with pytest.raises(PeerError):
            part.save_with_totals()
        assert calls == [{"learner_steps": 3}, "saved"]
    else:
        part.save_with_totals()
        assert calls == [{"learner_steps": 3}, 7.0, "saved"]


class Heard(Callback):
    def __init__(self, fails_at=None):
        self.returns, self._fails_at = [], fails_at

    def on_evaluation(self, scores):
        self.returns.append(scores.mean_return)
        if scores.mean_return == self._fails_at:
            raise ValueError("no more")


class Calls:
    """A monitor's node, whose answers are there at once; it fails if it is None."""

    def __init__(self, monitor):
        self._monitor = monitor

    def evaluations_after(self, task, number):
        answer = concurrent.futures.Future()
        if self._monitor is None:
            answer.set_exception(OSError("connection lost"))
        else:
            answer.set_result(self._monitor.evaluations_after(number))
        return answer


def listener(monitor, callback, num_evaluators=1):
    """Returns what has a task's callbacks hear of the evaluations that a monitor knows of."""
    part = object.__new__(TaskLearner)
    evaluator = types.SimpleNamespace(num_evaluators=num_evaluators)
    part.task = types.SimpleNamespace(name="task", evaluator=evaluator)
    client = types.SimpleNamespace(futures=Calls(monitor))
    part._monitor = types.SimpleNamespace(name="monitor/0", client=client, timeout=None)
    part._callbacks, part._evaluations = TaskCallbacks("task", (callback,)), 0
    part._counters_timeout = part._call_timeout = 5.0
    part.checkpointer = types.SimpleNamespace(check=lambda: None)
    part.learner, part._first_version = types.SimpleNamespace(version=0), 0
    part._collection = part._replay = None
    part.reporter = Answers(monitor)
    return part


class Answers:
    """A reporter whose monitor answers at once."""

    def __init__(self, monitor):
        self._monitor, self.answer = monitor, (0, {})

    def __call__(self, report):
        self.answer = self._monitor.evaluations.count, {}


def evaluate(monitor, *scores):
    for score in scores:
        number = monitor.evaluations.count
        of_episodes = {"evaluation_return_min": score, "evaluation_return_max": score}
        monitor.report("evaluator/0", number, [{"evaluation_return": score, **of_episodes}])


def kept():
    lines = []
    monitor = Monitor(Goal(mean_return=None), lambda *_: None, printer=lines.append)
    monitor.evaluations.keep()
    return monitor, lines


def test_callbacks_hear_of_every_evaluation_once_and_in_order():
    """Whenever it ended: before the first report, several between two, and after the last."""
    monitor, _ = kept()
    callback = Heard()
    part = listener(monitor, callback)
    evaluate(monitor, 1.0, 2.0)
    part._report({"learner_steps": 1})
    evaluate(monitor, 3.0)
    for _ in range(2):
        part._report({"learner_steps": 2})
    evaluate(monitor, 4.0, 5.0, 6.0)
    for _ in range(2):
        part._report({"learner_steps": 3})
    assert callback.returns == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    evaluate(monitor, 7.0, 8.0)
    for _ in range(2):
        part.hear_last_evaluations()
    assert callback.returns == [float(n) for n in range(1, 9)]
    evaluate(monitor, 9.0)
    again = Heard()  # of the learner's next life; 7 and 8 were not known to be heard of
    for _ in range(2):
        listener(monitor, again)._report({"learner_steps": 3})
    assert again.returns[-1] == 9.0


def test_an_evaluation_whose_callback_fails_is_not_heard_of_again():
    monitor, _ = kept()
    callback = Heard(fails_at=2.0)
    part = listener(monitor, callback)
    evaluate(monitor, 1.0, 2.0, 3.0)
    with pytest.raises(CallbackError, match=r"Heard\.on_evaluation: ValueError: no more"):
        part._report({"learner_steps": 1})
    part.hear_last_evaluations()
    assert callback.returns == [1.0, 2.0, 3.0]


def test_what_a_monitor_that_fails_knows_is_said_to_be_lost(capsys):
    part = listener(None, Heard())
    part.hear_last_evaluations()
    lost = "callbacks do not get the last evaluations: monitor/0.evaluations_after() failed"
    assert lost in capsys.readouterr().out
    listener(None, Heard(), num_evaluators=0).hear_last_evaluations()
    assert not capsys.readouterr().out


def test_evaluations_that_wait_for_callbacks_are_bounded(monkeypatch):
    monkeypatch.setattr(evaluations, "_MOST_KEPT", 3)
    monitor, lines = kept()
    evaluate(monitor, *map(float, range(10)))
    assert [number for number, _ in monitor.evaluations_after(0)] == [8, 9, 10]
    assert lines == ["3 evaluations wait for the callbacks; the oldest are left out"]
