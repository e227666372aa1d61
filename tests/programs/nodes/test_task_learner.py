"""What the learner of a task does at its end."""

import types

import pytest

from distrl.errors import PeerError
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
    part._learner = types.SimpleNamespace(counts=lambda: {"learner_steps": 3})
    part.reporter, part._counters_timeout = Reporter(), 7.0
    part.checkpointer = types.SimpleNamespace(close=lambda: calls.append("saved"))
    if monitor_fails:
        with pytest.raises(PeerError):
            part.save_with_totals()
        assert calls == [{"learner_steps": 3}, "saved"]
    else:
        part.save_with_totals()
        assert calls == [{"learner_steps": 3}, 7.0, "saved"]
