"""Log files within a limit, and on a full disk."""

import errno
import os

import pytest

from distrl.launch.supervision import node_logs
from distrl.launch.supervision.log_file import LogFile


def lines(first: int, last: int) -> bytes:
    """Lines of 100 bytes."""
    return b"".join(b"%099d\n" % number for number in range(first, last))


def test_a_limited_log_keeps_its_beginning_and_its_end(tmp_path):
    path = tmp_path / "actor-0.log"
    log = LogFile(path, 30_000)
    for number in range(2000):
        log.write(lines(number, number + 1))
    assert log.fds() and log.broken is None
    log.close()
    files = [tmp_path / f"actor-0{part}.log" for part in (".first", ".previous", "")]
    assert sorted(tmp_path.iterdir()) == sorted(files)
    contents = [file.read_bytes() for file in files]
    assert sum(map(len, contents)) <= 30_000
    assert contents[0] == lines(0, 100)
    assert contents[1] + contents[2] == lines(1800, 2000)


def test_pieces_of_any_size_are_cut_between_lines(tmp_path):
    path = tmp_path / "log"
    log = LogFile(path, 30_000)
    log.write(lines(0, 70))
    log.write(lines(70, 330))
    log.close()
    parts = [tmp_path / name for name in ("log.first", "log.previous", "log")]
    assert parts[0].read_bytes() == lines(0, 100)
    assert parts[1].read_bytes() + parts[2].read_bytes() == lines(200, 330)


def test_output_without_line_ends_stays_within_the_limit(tmp_path):
    log = LogFile(tmp_path / "log", 30_000)
    for _ in range(50):
        log.write(b"x" * 7777)
    log.close()
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 30_000
    assert (tmp_path / "log.first").stat().st_size == 7777


def test_a_log_is_continued_by_the_next_program(tmp_path):
    path = tmp_path / "log"
    for first in (0, 60, 120):
        log = LogFile(path, 30_000)
        log.write(lines(first, first + 60))
        log.close()
    assert (tmp_path / "log.first").read_bytes() == lines(0, 100)
    assert path.read_bytes() == lines(100, 180)


def test_without_a_limit_there_is_one_file(tmp_path):
    log = LogFile(tmp_path / "log")
    for _ in range(20):
        log.write(lines(0, 1000))
    log.close()
    assert [file.stat().st_size for file in tmp_path.iterdir()] == [2_000_000]


@pytest.mark.parametrize("operation", ["write", "replace", "open"])
def test_what_a_full_disk_does_not_take_is_counted(tmp_path, monkeypatch, operation):
    path = tmp_path / "log"
    log = LogFile(path, 30_000)
    log.write(lines(0, 99))

    def refuse(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, operation, refuse)
        log.write(lines(99, 102))
        log.write(lines(102, 104))
        assert log.broken is not None and log.broken.errno == errno.ENOSPC
    log.write(lines(104, 105))
    assert log.broken is None
    log.close()
    text = b"".join((tmp_path / name).read_bytes() for name in ("log.first", "log"))
    written = 99 if operation == "write" else 100  # the first file had room for one more
    note = b"\n[%d bytes left out: No space left on device]\n" % (100 * (104 - written))
    assert text == lines(0, written) + note + lines(104, 105)


def test_an_endless_printer_does_not_fill_a_redirected_terminal(tmp_path, monkeypatch):
    day = [0.0]
    monkeypatch.setattr(node_logs.time, "monotonic", lambda: day[0] * 86_400)
    with (tmp_path / "out").open("w+") as out:
        stream = node_logs.Stream(out)
        log = node_logs.NodeLog("actor/0", tmp_path / "log", stream, 0, 30_000)
        for number in range(1000):
            log.feed(lines(number, number + 1))
        shown = (tmp_path / "out").read_text().splitlines()
        day[0] = 1.0
        log.feed(lines(1000, 1001))
        log.close()
    assert 200 < len(shown) < 400
    assert shown[-1].startswith("[actor/0] [more today only in ")
    assert "supervision.log_limit_mb" in shown[-1]
    assert (tmp_path / "out").read_text().splitlines()[len(shown) :] == [f"[actor/0] {1000:099d}"]
    assert log.tail()[-1] == f"{1000:099d}" and log.tail()[-2] == f"{999:099d}"
