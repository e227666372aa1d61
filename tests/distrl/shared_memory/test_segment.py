"""Names of files in shared memory, and whose files a program finds and removes."""

from pathlib import Path

import pytest

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
