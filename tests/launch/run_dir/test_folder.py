"""The folder of a program that is no experiment."""

import json

import pytest

from distrl.errors import ConfigError
from distrl.launch.run_dir.folder import open_program_folder


def test_a_new_folder_is_in_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = open_program_folder(None, "my/program", ["distrl launch", "own.py"])
    assert (path.parent.name, "-my-program-" in path.name) == ("runs", True)
    config = json.loads((path / "config.json").read_text())
    assert config == {"command": ["distrl launch", "own.py"], "program": "my/program"}


def test_a_program_may_run_again_in_its_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("distrl.launch.run_dir.folder.lock", lambda path: None)  # held till the end
    for _ in range(2):
        path = open_program_folder(str(tmp_path / "run"), "own", ["launch"])
        assert not (path / "result.json").exists()
        (path / "result.json").write_text("{}")


def test_other_folders_are_refused(tmp_path):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(ConfigError, match="is not empty and not the folder of such a program"):
        open_program_folder(str(tmp_path), "own", ["launch"])


def test_one_program_at_a_time(tmp_path):
    open_program_folder(str(tmp_path / "run"), "own", ["launch"])
    with pytest.raises(ConfigError, match="one program at a time"):
        open_program_folder(str(tmp_path / "run"), "own", ["launch"])
