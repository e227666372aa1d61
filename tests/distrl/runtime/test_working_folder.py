"""Paths are those of the folder in which a command was started."""

import pytest

from distrl.runtime import working_folder


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """The process has gone to another folder than that in which it was started."""
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path / "home")
    with working_folder.kept():
        monkeypatch.chdir(tmp_path)
        yield tmp_path


def test_relative_paths_stay_where_they_were(elsewhere):
    assert working_folder.absolute("runs/a") == elsewhere / "home/runs/a"
    assert working_folder.absolute("/tmp/a").as_posix() == "/tmp/a"


def test_paths_are_shown_as_a_user_would_name_them(elsewhere):
    assert working_folder.shown(elsewhere / "home/runs/a") == "runs/a"
    assert working_folder.shown(elsewhere / "a") == str(elsewhere / "a")
    assert working_folder.shown("runs/a") == "runs/a"


def test_a_command_leaves_nothing_behind(tmp_path, monkeypatch):
    with working_folder.kept():
        pass
    monkeypatch.chdir(tmp_path)
    assert working_folder.absolute("a") == tmp_path / "a"
