"""Names of files in shared memory, and whose files a program finds and removes."""

from pathlib import Path

import pytest

from distrl.errors import DeadlineExceeded
from distrl.shared_memory import segment
from distrl.shared_memory.process import Process, pid_namespace

DEAD = Process(2**22 + 1, 1)  # above the largest process id


def test_files_of_another_pid_namespace_are_neither_removed_nor_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(segment, "FOLDER", tmp_path)
    ours, live = f".{pid_namespace()}.", Process.this()

    def left(name: str, creator: Process, namespace: str) -> Path:
        path = tmp_path / f"distrl.{name}.{creator.label}".replace(ours, namespace)
        path.touch()
        return path

    dead = left("a.b", DEAD, ours)
    kept = [left("a.b", DEAD, ".7."), left("a.b", live, ".7."), left("c", live, ours)]
    assert not segment.exists("a.b")
    assert segment.new_file("a.b", live).final_path() == tmp_path / f"distrl.a.b.{live.label}"
    assert segment.sweep() == ["a.b"]
    assert not dead.exists() and all(path.exists() for path in kept)
    assert [file.name for file in segment.existing()] == ["c"] and segment.exists("c")


def test_a_wait_for_a_file_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(segment, "FOLDER", tmp_path)
    monkeypatch.setattr(segment, "_FIRST_LINE_S", 0.03)
    with pytest.raises(DeadlineExceeded):
        segment.find("a", 0.2, None)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"waiting for table 'a' in {tmp_path} for 0 s" and len(lines) < 4
