"""Paths are those of the folder in which a command was started."""

from distrl.runtime import working_folder


def test_relative_paths_stay_where_they_were(moved):
    assert working_folder.absolute("runs/a") == moved / "home/runs/a"
    assert working_folder.absolute("/tmp/a").as_posix() == "/tmp/a"


def test_paths_are_shown_as_a_user_would_name_them(moved):
    assert working_folder.shown(moved / "home/runs/a") == "runs/a"
    assert working_folder.shown(moved / "a") == str(moved / "a")
    assert working_folder.shown("runs/a") == "runs/a"


def test_a_command_leaves_nothing_behind(tmp_path, monkeypatch):
    with working_folder.kept():
        pass
    monkeypatch.chdir(tmp_path)
    assert working_folder.absolute("a") == tmp_path / "a"
