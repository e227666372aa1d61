"""What is read of a process, also while it ends."""

import os
import threading
from pathlib import Path

import pytest

from distrl.runtime.process_stat import is_hidden, process_stat


def test_of_a_process_and_of_a_thread(tmp_path):
    this = process_stat(os.getpid())
    assert this is not None and this.parent == os.getppid() and this.state in "RS"
    thread = process_stat(f"{os.getpid()}/task/{threading.get_native_id()}")
    assert thread is not None and thread.threads == this.threads and thread.start >= this.start
    (tmp_path / "7").mkdir()
    fields = ["T", 3, *[0] * 9, 2 * os.sysconf("SC_CLK_TCK"), 0, *[0] * 4, 5, 0, 77, 0]
    (tmp_path / "7" / "stat").write_text(f"7 (a (b) c) {' '.join(map(str, fields))}\n")
    assert process_stat(7, tmp_path) == ("T", 3, 2.0, 5, 77)
    assert process_stat(8, tmp_path) is None


@pytest.mark.parametrize("error", [FileNotFoundError, PermissionError])  # hidepid=2, hidepid=1
def test_of_one_that_is_hidden(monkeypatch, error):
    assert not is_hidden(os.getpid())

    def read(path):
        raise error

    monkeypatch.setattr(Path, "read_bytes", read)
    assert process_stat(os.getpid()) is None and is_hidden(os.getpid())
    assert not is_hidden(1 << 30)  # of no process


def test_of_one_that_ends_while_it_is_read(monkeypatch):
    def read(path):
        raise ProcessLookupError(3, "No such process", str(path))

    monkeypatch.setattr(Path, "read_bytes", read)
    assert process_stat(os.getpid()) is None
