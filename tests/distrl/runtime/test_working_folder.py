"""Paths are those of the folder in which a command was started."""

import pytest

from distrl.runtime import working_folder


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """The process has gone to another folder than that in which it was started."""
    monkeypatch.setattr(working_folder, "_started_in", [])
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path / "home")
    working_folder.remember()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_relative_paths_stay_where_they_were(elsewhere):
    assert working_folder.absolute("runs/a") == elsewhere / "home/runs/a"
    assert working_folder.absolute("/tmp/a").as_posix() == "/tmp/a"


def test_paths_are_shown_as_a_user_would_name_them(elsewhere):
    assert working_folder.shown(elsewhere / "home/runs/a") == "runs/a"
    assert working_folder.shown(elsewhere / "a") == str(elsewhere / "a")
    assert working_folder.shown("runs/a") == "runs/a"
