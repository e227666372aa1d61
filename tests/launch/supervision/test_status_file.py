"""A status file that cannot be written: it is told once, and when it can be written again."""

import time

import pytest

from distrl.launch.local.live_process import LiveProcess
from distrl.launch.supervision.housekeeping import Housekeeping
from distrl.launch.supervision.requests import Requests
from distrl.launch.supervision.session import Session
from distrl.launch.supervision.status_file import FILE_NAME, StatusFile


@pytest.fixture
def clock(monkeypatch):
    """The monotonic clock, one item, which only the test moves."""
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    return clock


class Journal:
    """What the launcher says, and what it only notes."""

    def __init__(self):
        self.said, self.noted = [], []
        self.say, self.note = self.said.append, self.noted.append


def test_by_a_launcher(tmp_path, clock):
    folder = tmp_path / "gone"
    session, journal = object.__new__(Session), Journal()
    session.housekeeping, session._view, session.ticks = Housekeeping(journal), None, []
    session._status, session._requests = StatusFile(folder / FILE_NAME), Requests(folder)

    def run(ticks):
        for _ in range(ticks):
            session._on_tick([])
            clock[0] += 1.0

    run(9)
    (said,) = journal.said
    assert said.startswith(f"writing {FILE_NAME} failed: ") and not journal.noted
    folder.mkdir()
    run(9)
    assert (folder / FILE_NAME).exists()
    assert journal.said == [said] and journal.noted == [f"writing {FILE_NAME} works again"]


def test_by_a_single_process(tmp_path, clock, capsys):
    class Ended:
        """The event that ends the thread, after nine seconds."""

        def wait(self, seconds):
            clock[0] += seconds
            return clock[0] >= 1009.0

    process = LiveProcess(tmp_path / "gone", live=False)
    process._ended = Ended()
    process._run()
    (line,) = capsys.readouterr().out.splitlines()
    assert line == f"distrl: {tmp_path}/gone/{FILE_NAME}: No such file or directory"
