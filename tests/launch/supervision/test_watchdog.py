"""Hung nodes, told from nodes that are busy or wait; resource usage of processes."""

import os
import signal
import subprocess
import sys
import time

import pytest

from distrl.launch.supervision.restart_policy import HangLimits
from distrl.launch.supervision.usage import Usage, process_usage
from distrl.launch.supervision.watchdog import HangDetector
from distrl.runtime.heartbeat import HeartbeatTable

LIMITS = HangLimits(idle=60.0, busy=600.0, stopped=10.0)


class Clock:
    """Time, as the heartbeat and the detector see it, and a node that works in it."""

    def __init__(self, monkeypatch):
        self.now = 1000.0
        self.cpu = 0.0
        monkeypatch.setattr(time, "monotonic_ns", lambda: int(self.now * 1e9))
        self.heartbeat = HeartbeatTable(["actor/0"]).of("actor/0")
        self.heartbeat.begin(0)
        self.detector = HangDetector(self.heartbeat, LIMITS)

    def run(self, seconds, cores, stopped=False, beats=True):
        """Returns what the detector says at the end, having checked every second."""
        for _ in range(int(seconds)):
            self.now += 1.0
            self.cpu += cores
            if beats:
                self.heartbeat.beat()
            cause = self.detector.check(Usage(self.cpu, stopped), self.now)
            if cause is not None:
                return cause
        return None


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def test_a_node_that_never_reports_is_not_judged(clock):
    assert clock.run(10_000, 0.0) is None


def test_a_node_that_waits_is_left_alone(clock):
    clock.heartbeat.tick()
    clock.heartbeat.wait()
    assert clock.run(10_000, 0.0) is None


def test_the_limit_that_a_node_comes_near_is_known(clock):
    clock.heartbeat.tick()
    assert (clock.run(28, 0.0), clock.detector.near) == (None, None)
    assert clock.run(5, 0.0) is None
    assert clock.detector.near == ("idle", 33.0, 60.0)
    clock.heartbeat.tick()
    assert (clock.run(1, 0.0), clock.detector.near) == (None, None)
    clock.run(310, 1.0)
    assert clock.detector.near == ("busy", 311.0, 600.0)


def test_a_blocked_node_is_found_after_the_idle_limit(clock):
    clock.heartbeat.tick()
    assert clock.run(58, 0.0) is None
    assert clock.run(10, 0.0).startswith("made no progress for 6")


def test_a_pure_python_loop_at_full_speed_is_only_busy(clock):
    clock.heartbeat.tick()
    assert clock.run(590, 1.0) is None
    assert "at 100% of a core" in clock.run(20, 1.0)


def test_progress_resets_the_count(clock):
    for _ in range(50):
        clock.heartbeat.tick()
        assert clock.run(50, 0.0) is None


def test_a_stopped_process_is_found_soon_and_one_that_continues_is_not(clock):
    assert clock.run(8, 0.0, stopped=True) is None
    assert clock.run(1, 0.0) is None
    assert clock.run(15, 0.0, stopped=True).startswith("was stopped by a signal")


def test_threads_that_do_not_run_are_found_while_the_node_waits(clock):
    clock.heartbeat.tick()
    clock.heartbeat.wait()
    assert clock.run(5, 0.0) is None
    assert clock.run(100, 0.0, beats=False) is not None


@pytest.mark.parametrize("cores", [0.0, 1.0])
@pytest.mark.parametrize("worked", [0, 20])
def test_a_program_that_was_frozen_as_a_whole_has_no_hung_nodes(clock, cores, worked):
    clock.heartbeat.tick()
    clock.heartbeat.wait()
    clock.run(3, 0.0)
    clock.heartbeat.tick()
    assert clock.run(worked, cores) is None
    clock.now += 1000.0  # frozen: neither the launcher's checks nor the node's threads
    assert (clock.run(1, cores), clock.detector.near) == (None, None)
    limit = 60 if cores == 0.0 else 600
    assert clock.run(limit - worked - 2, cores) is None
    assert clock.run(1, cores).startswith(f"made no progress for {limit + 1} s")


def test_a_node_that_works_on_after_a_freeze_is_judged_from_its_progress_on(clock):
    clock.heartbeat.tick()
    assert clock.run(20, 0.0) is None
    clock.now += 1000.0
    clock.heartbeat.tick()
    assert clock.run(60, 0.0) is None
    assert clock.run(1, 0.0).startswith("made no progress for 61 s")


def test_usage_counts_descendants_and_sees_a_stop():
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: pass'])"
    process = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    try:
        deadline = time.monotonic() + 20.0
        while process_usage(process.pid).cpu < 0.5:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        usage = process_usage(process.pid)
        assert not usage.stopped
        assert usage.resident > 5e6
        os.kill(process.pid, signal.SIGSTOP)
        while not process_usage(process.pid).stopped:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(5)
    assert process_usage(process.pid) is None
