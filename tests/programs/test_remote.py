"""Reports on their way to the monitor."""

import concurrent.futures

import pytest

pytest.importorskip("launchpad")

from distrl.errors import PeerError
from distrl.programs.program import NodeHandle
from distrl.programs.remote import Reporter


class Monitor:
    """A client whose calls end when the test says so."""

    def __init__(self):
        self.futures = self
        self.calls = []

    def report(self, task, node, number, reports):
        future = concurrent.futures.Future()
        self.calls.append((task, node, number, list(reports), future))
        return future


def test_a_report_behind_one_that_is_under_way_is_sent_by_flush():
    monitor = Monitor()
    reporter = Reporter(NodeHandle("monitor/0", monitor), "task", "learner/0")
    reporter({"learner_steps": 1})
    reporter({"learner_steps": 2})
    reporter({"learner_steps": 3})
    assert len(monitor.calls) == 1  # the monitor has not answered the first
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        flushing = pool.submit(reporter.flush, 10.0)
        monitor.calls[0][-1].set_result(None)
        while len(monitor.calls) == 1:
            assert not flushing.done()
        monitor.calls[1][-1].set_result(None)
        flushing.result(10.0)
    (_, _, first, sent, _), (task, node, second, rest, _) = monitor.calls
    assert (task, node, second - first) == ("task", "learner/0", 1)
    assert sent + rest == [{"learner_steps": steps} for steps in (1, 2, 3)]


def test_a_monitor_that_does_not_answer_is_named():
    reporter = Reporter(NodeHandle("monitor/0", Monitor()), "task", "learner/0")
    reporter({"learner_steps": 1})
    with pytest.raises(PeerError, match=r"monitor/0.report\(\) failed"):
        reporter.flush(0.01)
