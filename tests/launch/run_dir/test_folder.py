"""The folder of a program that is no experiment."""

import datetime
import errno
import fcntl
import json
import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from distrl.errors import ConfigError
from distrl.launch.run_dir import folder
from distrl.launch.run_dir.folder import make_folder_in_runs, open_program_folder
from distrl.launch.supervision.log_file import LogFile
from distrl.runtime.files import owner


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


@pytest.mark.parametrize("running", [False, True])
@pytest.mark.parametrize("written", [False, True])
def test_a_folder_of_another_user_is_named_with_its_owner(tmp_path, monkeypatch, written, running):
    def open_lock(path, flags, mode):
        raise PermissionError(13, "Permission denied", str(path))

    file = tmp_path / "lock" if written else tmp_path
    if written:
        file.touch()
    monkeypatch.setattr(folder.os, "open", open_lock)
    monkeypatch.setattr(folder, "is_running", lambda path: running)
    with pytest.raises(ConfigError) as refused:
        folder.lock(tmp_path)
    now = ", whose program runs there" if running else ""
    assert str(refused.value) == (
        f"--run_dir: {file} is {owner(file)}'s{now}, and you may not write it; take a folder of "
        "your own"
    )


def test_a_file_system_without_locks_is_named(tmp_path, monkeypatch):
    def flock(descriptor, operation):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(ConfigError, match=r"its file system has no locks \(flock: Func"):
        folder.lock(tmp_path)
    assert (tmp_path / "lock").exists()
    assert folder.is_running(tmp_path) is False


def test_a_group_may_write_the_lock_and_the_logs_where_the_umask_lets_it(tmp_path):
    before = os.umask(0o002)
    try:
        folder.lock(tmp_path)
        LogFile(tmp_path / "actor-0.log").close()
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == {"lock": 0o664, "actor-0.log": 0o664}


def test_one_program_at_a_time(tmp_path):
    open_program_folder(str(tmp_path / "run"), "own", ["launch"])
    with pytest.raises(ConfigError, match="one program at a time"):
        open_program_folder(str(tmp_path / "run"), "own", ["launch"])
