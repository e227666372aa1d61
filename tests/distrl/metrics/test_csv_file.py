"""`metrics.csv`: continued, damaged, and on a full disk."""

import errno
import os

import pytest

from distrl.metrics import csv_file
from distrl.metrics.csv_file import CsvFile

ROW = {"seconds": 1.5, "loss": 2.0}
TEXT = "seconds,loss\n1.5,2.0\n"


@pytest.fixture
def lines():
    return []


def append(path, lines, rows=1):
    file = CsvFile(path, lines.append)
    for _ in range(rows):
        file.append(ROW)
    file.close()
    return path.read_text().replace("\r", "")


def test_a_file_is_continued_under_its_own_header(tmp_path, lines):
    path = tmp_path / "metrics.csv"
    path.write_text("loss,other,seconds\n3.0,4,1\n5.")  # torn in the middle of a row
    assert append(path, lines) == "loss,other,seconds\n3.0,4,1\n2.0,,1.5\n"
    assert lines == []


def test_new_names_get_columns(tmp_path, lines):
    path = tmp_path / "metrics.csv"
    path.write_text("loss,other\n3.0,4\n")
    file = CsvFile(path, lines.append)
    file.append(ROW)
    file.append({"entropy": 0.5, **ROW})
    file.resume("loss", 2)  # the rows beyond are cut in the new file
    file.append({"loss": 1.0})
    file.close()
    text = "loss,other,seconds,entropy\n3.0,4,,\n2.0,,1.5,\n2.0,,1.5,0.5\n1.0,,,\n"
    assert path.read_text().replace("\r", "") == text
    assert list(tmp_path.iterdir()) == [path] and lines == []


def test_a_disk_too_full_for_new_columns_costs_the_row(tmp_path, lines, monkeypatch):
    path = tmp_path / "metrics.csv"
    path.write_text("loss\n3.0\n")
    file = CsvFile(path, lines.append)

    def full(path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("distrl.metrics.csv_file.sync", full)
    file.append(ROW)
    assert path.read_text() == "loss\n3.0\n" and list(tmp_path.iterdir()) == [path]
    assert lines == [f"distrl: {path}: {os.strerror(errno.ENOSPC)}: rows will be missing"]
    monkeypatch.undo()
    file.append(ROW)
    file.close()
    assert path.read_text().replace("\r", "") == "loss,seconds\n3.0,\n2.0,1.5\n"


@pytest.mark.parametrize("content", [b"\xff\xfe\0junk\n1,2\n", b"\0\0\0\n"])
def test_a_damaged_file_is_put_aside(tmp_path, lines, content):
    path = tmp_path / "metrics.csv"
    path.write_bytes(content)
    assert append(path, lines) == TEXT
    assert (tmp_path / "metrics.csv.damaged").read_bytes() == content
    assert lines == [f"distrl: {path} is damaged: it is now metrics.csv.damaged"]


def test_a_full_disk_costs_rows_and_nothing_else(tmp_path, lines):
    path = tmp_path / "metrics.csv"
    file = CsvFile(path, lines.append)
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, file._file.fileno())
    os.close(full)
    file.append(ROW)
    assert lines == [f"distrl: {path}: {os.strerror(errno.ENOSPC)}: rows will be missing"]
    assert path.read_text() == ""
    file.append(ROW)  # there is room again
    file.close()
    assert path.read_text().replace("\r", "") == TEXT
    assert len(lines) == 1


def test_a_path_that_cannot_be_written(tmp_path, lines):
    (tmp_path / "metrics.csv").mkdir()
    CsvFile(tmp_path / "metrics.csv", lines.append).append(ROW)
    assert lines == [f"distrl: {tmp_path / 'metrics.csv'}: Is a directory: rows will be missing"]


@pytest.mark.parametrize("block", [1, 5, 1 << 16])
def test_a_file_is_opened_and_cut_from_its_end(tmp_path, lines, monkeypatch, block):
    monkeypatch.setattr(csv_file, "_BLOCK", block)
    path = tmp_path / "metrics.csv"
    whole = "seconds,loss\r\n" + "".join(f"{n},{n}.5\r\n" for n in range(30))
    path.write_bytes((whole + "30,30").encode())
    file = CsvFile(path, lines.append)
    assert path.read_bytes() == whole.encode()
    assert file.header == ["seconds", "loss"]
    file.resume("seconds", 11)
    assert path.read_bytes() == whole[: whole.index("12,")].encode()
    file.resume("seconds", -1)
    assert path.read_bytes() == b"seconds,loss\r\n"
    file.close()
    assert lines == []
