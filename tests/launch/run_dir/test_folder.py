"""The folder of a program that is no experiment."""

import datetime
import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from distrl.errors import ConfigError
from distrl.launch.run_dir import folder
from distrl.launch.run_dir.folder import make_folder_in_runs, open_program_folder


def test_a_new_folder_is_in_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = open_program_folder(None, "my/program", ["distrl launch", "own.py"])
    assert (path.parent.name, "-my-program-" in path.name) == ("runs", True)
    config = json.loads((path / "config.json").read_text())
    assert config == {"command": ["distrl launch", "own.py"], "program": "my/program"}


def test_threads_of_one_second_get_folders_of_their_own(tmp_path, monkeypatch):
    class Clock(datetime.datetime):
        @classmethod
        def now(cls):
            return cls(2026, 1, 2)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(folder.datetime, "datetime", Clock)
    with ThreadPoolExecutor(4) as pool:
        paths = list(pool.map(make_folder_in_runs, 4 * ["own"]))
    first = min(paths, key=lambda path: len(path.name)).name
    assert {path.name for path in paths} == {first, *(f"{first}-{k}" for k in (2, 3, 4))}
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    (tmp_path / "other" / "runs").touch()
    with pytest.raises(ConfigError, match=r"^--run_dir: runs/.*-own-.* cannot be a folder: "):
        make_folder_in_runs("own")


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
