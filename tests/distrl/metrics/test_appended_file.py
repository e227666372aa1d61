"""Files of whole records, on a disk that turns full."""

import errno
import os

from distrl.metrics.appended_file import AppendedFile
from distrl.metrics.sinks import JsonLines
from tests.support.full_disk import no_file_above


def test_json_lines_are_whole_after_a_full_disk(tmp_path):
    lines = []
    path = tmp_path / "metrics.jsonl"
    sink = JsonLines(path, lines.append)
    for steps in (1, 2):
        sink.append({"env_steps": steps})
    whole = path.read_bytes()
    with no_file_above(len(whole) + 5):
        for steps in (3, 4):
            sink.append({"env_steps": steps})
            assert path.read_bytes() == whole + b'{"env'  # as much as there was room for
    assert lines == [f"distrl: {path}: {os.strerror(errno.EFBIG)}: rows will be missing"]
    sink.append({"env_steps": 5})
    assert path.read_bytes() == whole + b'{"env_steps": 5}\n'
    with no_file_above(len(whole) + 20):
        sink.append({"env_steps": 6})
        sink.close()
    assert path.read_bytes() == whole + b'{"env_steps": 5}\n'
    assert len(lines) == 2  # it was written in between


def test_a_file_that_became_shorter_keeps_its_end(tmp_path):
    path = tmp_path / "records"
    lines = []
    file = AppendedFile(path, lines.append)
    assert file.append(b"12345678")
    with no_file_above(10):
        assert not file.append(b"abcd")
    path.write_bytes(b"123")  # somebody else's
    assert file.append(b"!")
    assert path.read_bytes() == b"123!"
    path.unlink()
    assert file.append(b"?")
    assert path.read_bytes() == b"?"
    assert len(lines) == 1
