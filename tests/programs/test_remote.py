"""Reports on their way to the monitor."""

import concurrent.futures
import json
import math
import threading
from types import SimpleNamespace

import pytest

from distrl.errors import PeerError, SpecError
from distrl.goal import Goal
from distrl.metrics import monitor
from distrl.programs import remote
from distrl.programs.nodes import monitor as monitor_module
from distrl.programs.nodes.monitor import MonitorNode
from distrl.programs.nodes.time_reports import TimeReports
from distrl.programs.program import NodeHandle
from distrl.programs.remote import Peer, Reporter
from distrl.programs.substrate import node_context
from distrl.runtime.heartbeat import UP, HeartbeatTable, install_heartbeat_lookup
from tests.support.waiting import until


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


def test_a_report_may_be_waited_for_without_end():
    monitor = Monitor()
    reporter = Reporter(NodeHandle("monitor/0", monitor), "task", "learner/0")
    reporter({"learner_steps": 1})
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        flushing = pool.submit(reporter.flush, math.inf)
        future = monitor.calls[0][-1]
        until(lambda: flushing.done() or future._condition._waiters, "the flush to wait")
        future.set_result(None)
        flushing.result(10.0)


def test_a_node_that_outlives_the_monitor_gives_up_its_report():
    """Courier's client waits for a call that is under way when it goes, perhaps for ever."""
    monitor = Monitor()
    passes = iter([False, True])
    stop = SimpleNamespace(wait=lambda seconds: next(passes))
    times = TimeReports(
        NodeHandle("monitor/0", monitor), "task", "replay/0", lambda: {"time": {"serving": 1.0}}
    )
    times.send_until(stop)
    ((*_, future),) = monitor.calls
    assert future.cancelled()


class DeadlineExceededError(Exception):
    """What a call raises whose deadline has passed."""


def test_no_report_is_lost_when_the_clock_is_set():
    """All deadlines pass at once; the monitor may or may not have got the report."""
    monitor = Monitor()
    reporter = Reporter(NodeHandle("monitor/0", monitor, 60.0), "task", "learner/0")
    reporter({"learner_steps": 1})
    monitor.calls[0][-1].set_exception(DeadlineExceededError())
    reporter({"learner_steps": 2})
    assert len(monitor.calls) == 2  # the first once more, and not the second before it
    reporter({"learner_steps": 3})
    monitor.calls[1][-1].set_result(None)
    reporter({"learner_steps": 4})
    monitor.calls[2][-1].set_exception(DeadlineExceededError())
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        flushing = pool.submit(reporter.flush, 10.0)
        while len(monitor.calls) < 4:
            assert not flushing.done()
        monitor.calls[3][-1].set_result(None)
        flushing.result(10.0)
    numbers = [number - monitor.calls[0][2] for _, _, number, _, _ in monitor.calls]
    assert numbers == [0, 0, 1, 1]
    steps = [[report["learner_steps"] for report in sent] for _, _, _, sent, _ in monitor.calls]
    assert steps == [[1], [1], [2, 3, 4], [2, 3, 4]]


def test_a_report_is_repeated_until_its_deadline_has_passed(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(remote.time, "monotonic", lambda: clock[0])
    monitor = Monitor()
    reporter = Reporter(NodeHandle("monitor/0", monitor, 60.0), "task", "learner/0")
    reporter({"learner_steps": 1})
    for seconds in (20.0, 40.0):
        clock[0] = seconds
        monitor.calls[-1][-1].set_exception(DeadlineExceededError())
        reporter({"learner_steps": 2})
    assert [sent for _, _, _, sent, _ in monitor.calls] == [[{"learner_steps": 1}]] * 3
    clock[0] = 60.0
    monitor.calls[-1][-1].set_exception(DeadlineExceededError())
    with pytest.raises(PeerError, match=r"monitor/0.report\(\) failed"):
        reporter({"learner_steps": 3})


def test_a_call_whose_deadline_passes_early_is_made_again(monkeypatch):
    monkeypatch.setattr(node_context, "stop_event", threading.Event)
    calls = []

    class Learner:
        def get_variables(self, newer_than):
            calls.append(newer_than)
            if len(calls) == 1:
                raise DeadlineExceededError
            return 7, b"params"

    assert Peer(NodeHandle("learner/0", Learner(), 60.0)).get_variables(6) == (7, b"params")
    assert calls == [6, 6]
    calls.clear()
    with pytest.raises(PeerError, match=r"learner/0.get_variables\(\) failed"):
        Peer(NodeHandle("learner/0", Learner(), 0.0)).get_variables(6)
    assert calls == [6]


@pytest.mark.parametrize(
    ("name", "setting"),
    [("learner/0", "supervision.call_timeout"), ("inferencer/1", "inference.timeout")],
)
def test_a_call_without_an_answer_names_the_setting_of_its_deadline(monkeypatch, name, setting):
    clock = [0.0]
    monkeypatch.setattr(remote.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(node_context, "stop_event", threading.Event)

    class Starting:
        def ask(self):
            clock[0] += 60.0
            raise DeadlineExceededError("Deadline Exceeded")

    with pytest.raises(PeerError) as error:
        Peer(NodeHandle(name, Starting(), 60.0)).ask()
    assert str(error.value) == (
        f"{name}.ask() failed, no answer in 60 s ({setting}): Deadline Exceeded"
    )


def test_a_call_after_a_restart_between_two_calls_is_made_again(monkeypatch):
    """The connection of before is lost, and the peer is up: no other restart will follow."""
    learner = SimpleNamespace(status=UP, life=0)
    lives = SimpleNamespace(table=SimpleNamespace(of={"learner/0": learner}.get))
    monkeypatch.setattr(remote, "current_heartbeat", lambda: lives)
    monkeypatch.setattr(node_context, "stop_event", threading.Event)
    calls = []

    class Learner:
        connected_to = 0

        def get_variables(self, newer_than):
            calls.append(newer_than)
            lost, self.connected_to = self.connected_to != learner.life, learner.life
            if lost:
                raise PeerError("the other end closed the connection")
            return newer_than + 1, b"params"

    peer = Peer(NodeHandle("learner/0", Learner(), 60.0))
    assert peer.get_variables(6) == (7, b"params")
    learner.life = 1
    assert peer.get_variables(7) == (8, b"params")
    assert calls == [6, 7, 7]


def test_a_monitor_that_does_not_answer_is_named():
    reporter = Reporter(NodeHandle("monitor/0", Monitor()), "task", "learner/0")
    reporter({"learner_steps": 1})
    with pytest.raises(PeerError, match=r"monitor/0.report\(\) failed"):
        reporter.flush(0.01)


@pytest.mark.parametrize("report", [{"probe_value": 3}, {"metrics": {"size": "3"}}])
def test_a_report_that_the_monitor_would_refuse_is_refused_where_it_is_made(report):
    monitor = Monitor()
    with pytest.raises(SpecError, match=r"^probe/0"):
        Reporter(NodeHandle("monitor/0", monitor), "task", "probe/0")(report)
    assert not monitor.calls


class Server:
    """A client of a node that has died."""

    def ask(self):
        raise ConnectionError("reset")


@pytest.mark.parametrize(
    ("host_lost", "message"),
    [(True, r"the host of inferencer/0 is lost"), (False, r"ask\(\) failed: reset")],
)
def test_a_call_to_a_lost_host_names_it_when_it_is_not_back_in_time(
    monkeypatch, host_lost, message
):
    monkeypatch.setattr(remote, "RESTART_TIMEOUT_S", 0.0)
    table = HeartbeatTable(["actor/0", "inferencer/0"])
    row = table.of("inferencer/0")
    row.begin(0)
    row.end(True, host_lost)
    install_heartbeat_lookup(lambda: (table.of("actor/0"), True))
    node_context.new_manager()
    try:
        with pytest.raises(PeerError, match=message):
            Peer(NodeHandle("inferencer/0", Server())).ask()
    finally:
        install_heartbeat_lookup(lambda: None)
        node_context._here.__dict__.clear()


class Node(MonitorNode):
    """A monitor's node with one task, without the rest of it, whose replies can be lost."""

    def __init__(self, table):
        self._stop, self._heartbeats = threading.Event(), table
        self._saved, self._unsaved = threading.Condition(), {"task"}
        self.lines, self.futures, self.lost = [], self, False
        goal = Goal(mean_return=None)
        self._monitors = {"task": monitor.Monitor(goal, print, printer=self.lines.append)}

    def report(self, *arguments):
        future = concurrent.futures.Future()
        if not self.lost:
            future.set_result(super().report(*arguments))
        return future


def test_counts_are_right_where_the_last_report_is_lost(monkeypatch, capsys):
    table = HeartbeatTable(["actor/0", "actor/1", "monitor/0"])
    acting, other, own = map(table.of, ("actor/0", "actor/1", "monitor/0"))
    for heartbeat in (acting, other, own):
        heartbeat.begin(life=5)
    node = Node(table)
    monkeypatch.setattr(remote, "current_heartbeat", lambda: acting)
    reporter = Reporter(NodeHandle("monitor/0", node), "task", "actor/0")
    reporter({"env_steps": 100, "episodes": [[1.0, 1, 0]] * 100})
    node.lost = True
    reporter({"env_steps": 70, "episodes": [[1.0, 1, 0]] * 70})
    acting.acted, other.acted = 170, 30
    reporter.close(timeout=0.01)
    assert "the last reports are lost: monitor/0.report() failed" in capsys.readouterr().out
    assert json.loads(node.state("task"))["env_steps_acted"] == 100  # it may still come
    acting.end(comes_back=False)
    assert json.loads(node.state("task"))["env_steps_acted"] == 170  # what a checkpoint has
    other.end(comes_back=False)
    monkeypatch.setattr(monitor_module, "current_heartbeat", lambda: own)
    node._stop.set()
    node.run()
    assert "env steps        200 " in node.lines[-1]
    assert "episodes 100 " in node.lines[-1] and "  unreported steps 100" in node.lines[-1]
