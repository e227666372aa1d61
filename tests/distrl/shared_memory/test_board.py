"""The board of the newest version: whole ones, from a writer that may end at any moment."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from distrl.shared_memory import segment
from distrl.shared_memory.board import Board
from distrl.shared_memory.process import Process

NBYTES = 100_000
WRITER = """
import sys
from distrl.shared_memory.board import Board
from distrl.shared_memory.process import Process
board = Board.create(sys.argv[1], Process.parent(), int(sys.argv[2]))
print(board.path, flush=True)
version = 0
while True:
    version += 1
    board.write(version, lambda memory: memory.fill(version % 251))
"""


@pytest.fixture
def name():
    return f"test-{os.getpid()}-board"


def test_a_reader_gets_what_was_written_last_once(name):
    board = Board.create(name, Process.this(), 8)
    reader = Board.open(board.path)
    for version in (3, 4, 2):  # an older one after its writer has resumed
        board.write(version, lambda memory, version=version: memory.fill(version))
        assert reader.version == version
        assert reader.read(-1) == (version, bytes([version] * 8))
        assert reader.read(version) is None
    board.close()
    assert reader.is_closed and not os.path.exists(board.path)
    assert reader.read(-1) == (2, bytes([2] * 8))


def test_a_writer_that_begins_again_closes_the_board_before(name):
    before = Board.create(name, Process.this(), 8)
    reader = Board.open(before.path)
    after = Board.create(name, Process.this(), 8)
    assert reader.is_closed and not after.is_closed
    after.close()


def test_a_writer_begins_again_that_was_killed_while_it_made_its_board(name):
    unfinished = segment.create(name, 8, Process.this(), segment.BOARD)
    board = Board.create(name, Process.this(), 8)
    assert not unfinished.path.exists()
    board.close()


def test_where_there_is_no_memory_there_is_no_board(name, monkeypatch):
    def refuse(*arguments):
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    assert Board.create(name, Process.this(), 8) is None


@pytest.mark.timeout(60)
def test_versions_are_whole_while_they_are_written_and_after_the_writer_was_killed(name):
    command = [sys.executable, "-c", WRITER, name, str(NBYTES)]
    writer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        reader = Board.open(writer.stdout.readline().strip())
        seen = reads = 0
        while reads < 300 or seen == 0:  # it may take a while to begin
            reads += 1
            found = reader.read(seen)
            if found is not None:
                seen, data = found
                assert set(np.frombuffer(data, np.uint8)) == {seen % 251}
    finally:
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
    version, data = reader.read(-1)
    assert version >= seen > 0 and set(data) == {version % 251}
    after = Board.create(name, Process.this(), NBYTES)  # removes the file of the dead
    assert reader.is_closed
    after.close()
