"""What a restarted node, and one that comes late, does about a file in shared memory."""

from pathlib import Path

import pytest

from distrl.errors import SharedMemoryLost
from distrl.programs.running import shared_files
from distrl.runtime.heartbeat import HeartbeatTable, install_heartbeat_lookup
from distrl.shared_memory import segment
from distrl.shared_memory.process import Process
from distrl.shared_memory.segment import TABLE

VANISHED = "table 'a' has vanished from .*; the same command resumes from the last checkpoint$"


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The heartbeats of a replay, whose row is the calling thread's, and of an actor."""
    monkeypatch.setattr(segment, "FOLDER", tmp_path)
    table = HeartbeatTable(["replay/0", "actor/0"])
    replay, actor = table.of("replay/0"), table.of("actor/0")
    install_heartbeat_lookup(lambda: (replay, True))
    yield replay, actor
    install_heartbeat_lookup(lambda: None)


def make() -> Path:
    file = segment.publish(segment.create("a", 1, Process.this()))
    shared_files.note_made()
    return file.path


def test_a_node_that_died_before_it_made_its_file_makes_it(rows):
    for life in range(2):
        rows[0].begin(life)
        assert not shared_files.left_by_earlier_life("a", TABLE)
        shared_files.check_not_lost("a", TABLE, "replay/0")  # it will come


def test_a_restarted_node_uses_its_file_and_makes_no_second_one(rows):
    rows[0].begin(0)
    path = make()
    rows[0].begin(1)
    assert shared_files.left_by_earlier_life("a", TABLE)
    path.unlink()
    with pytest.raises(SharedMemoryLost, match=VANISHED):
        shared_files.left_by_earlier_life("a", TABLE)


def test_nobody_waits_for_a_file_that_is_gone(rows):
    rows[0].begin(0)
    path = make()
    install_heartbeat_lookup(lambda: (rows[1], True))
    shared_files.check_not_lost("a", TABLE, "replay/0")
    path.unlink()
    with pytest.raises(SharedMemoryLost, match=VANISHED):
        shared_files.check_not_lost("a", TABLE, "replay/0")
    install_heartbeat_lookup(lambda: None)  # as under Launchpad's own launchers
    shared_files.check_not_lost("a", TABLE, "replay/0")
