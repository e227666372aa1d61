"""The code in a run folder, and that it comes back as it was."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from distrl.envs import PythonEnvironment
from distrl.errors import ConfigError
from distrl.experiment import Experiment
from distrl.launch.run_dir import snapshot
from distrl.launch.runs import snapshot_code
from distrl.testing import CheckingConfig, CountingEnvironment

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
EXPERIMENT = Experiment(PythonEnvironment(CountingEnvironment), CheckingConfig())


@pytest.fixture
def code(tmp_path, monkeypatch):
    """A checkout of a small distrl, without a repository yet."""
    root = tmp_path / "checkout"
    for name in ("distrl", "launch", "programs"):
        (root / name).mkdir(parents=True)
        (root / name / "__init__.py").write_text(f"{name} = 1\n")
    for name in ("launch", "programs"):
        (root / "distrl" / name).symlink_to(f"../{name}")
    (root / "programs" / "old.py").write_text("old = 1\n")
    (root / "other.py").write_text("")
    for module in (snapshot, snapshot_code):
        monkeypatch.setattr(module, "PACKAGE", root / "distrl")
    monkeypatch.setattr(snapshot, "_users_modules", lambda *_: iter(()))
    return root


@pytest.fixture
def umask():
    before = os.umask(0o027)
    yield
    os.umask(before)


def test_a_snapshot_has_the_umasks_mode_as_the_run_has(tmp_path, code, umask):
    run = tmp_path / "run"
    snapshot.write_snapshot(run, EXPERIMENT, "", [])
    modes = {path.name: path.stat().st_mode & 0o777 for path in run.rglob("*")}
    assert modes == {"code": 0o750, "1": 0o750, "snapshot.json": 0o640, "distrl.zip": 0o640}


def test_a_name_is_the_same_in_a_locale_that_lacks_its_characters(tmp_path, code, monkeypatch):
    kept = []
    for name in ("übung.py", "übung.py".encode().decode("ascii", "surrogateescape")):
        files = {f"experiment/{name}": b"1"}
        monkeypatch.setattr(snapshot, "_users_modules", lambda *_, files=files: files.items())
        kept.append(snapshot.write_snapshot(tmp_path / "run", EXPERIMENT, "", []))
    assert kept[0] == kept[1]
    assert (kept[0] / "experiment" / "übung.py").read_bytes() == b"1"


def test_a_snapshot_that_may_not_be_read_is_named(tmp_path, code, monkeypatch):
    path = snapshot.write_snapshot(tmp_path, EXPERIMENT, "", [])

    def read(self):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "read_bytes", read)
    with pytest.raises(ConfigError) as refused:
        snapshot_code.run_with_snapshot("play", str(tmp_path), [])
    assert str(refused.value) == (
        f"{path}/snapshot.json: Permission denied; its owner lets a group read a run by "
        "chmod -R g+rX RUN"
    )


def commit(root):
    identity = ["-c", "user.name=A", "-c", "user.email=a@b.c"]
    for words in (["init", "-q"], ["add", "."], [*identity, "commit", "-q", "-m", "one"]):
        subprocess.run(["git", "-C", str(root), *words], check=True, timeout=30)


def tree(folder):
    """The Python files in distrl's folders, links followed."""
    found = {}
    for where, _, names in os.walk(folder / "distrl", followlinks=True):
        for name in names:
            with open(os.path.join(where, name)) as file:
                found[os.path.relpath(os.path.join(where, name), folder)] = file.read()
    return found


def restored(run, folder):
    newest = snapshot.newest_snapshot(run)
    folder.mkdir()
    what = snapshot_code._write_code(newest, snapshot.read_about(newest), folder)
    return tree(folder), what


@needs_git
def test_a_revision_with_its_changes_comes_back(tmp_path, code):
    commit(code)
    run = tmp_path / "run"
    first = snapshot.write_snapshot(run, EXPERIMENT, "", [])
    assert sorted(path.name for path in first.iterdir()) == ["snapshot.json"]
    assert restored(run, tmp_path / "a") == (tree(code), restored(run, tmp_path / "b")[1])
    assert snapshot.write_snapshot(run, EXPERIMENT, "", ["other"]) == first  # the same code
    (code / "launch" / "__init__.py").write_text("launch = 2\n")
    (code / "programs" / "old.py").unlink()
    (code / "distrl" / "new.py").write_text("new = 3\n")
    (code / "other.py").write_text("no part of distrl\n")
    second = snapshot.write_snapshot(run, EXPERIMENT, "", [])
    assert second.name == "2" and (second / "distrl.patch").stat().st_size < 1000
    then = tree(code)
    (code / "launch" / "__init__.py").write_text("launch = 4\n")
    found, what = restored(run, tmp_path / "c")
    assert found == then and found["distrl/launch/__init__.py"] == "launch = 2\n"
    assert what.endswith("with changes and new files")


@needs_git
def test_a_revision_that_is_gone_and_changes_that_are_too_large(tmp_path, code, monkeypatch):
    commit(code)
    run = tmp_path / "run"
    (code / "launch" / "__init__.py").write_text("launch = 2\n")
    monkeypatch.setattr(snapshot, "_MOST_BYTES", 10)
    path = snapshot.write_snapshot(run, EXPERIMENT, "", [])
    about = snapshot.read_about(path)
    assert about["left_out"][0].startswith("distrl.patch: ")
    with pytest.raises(ConfigError, match=r"lacks the changes to revision \w+: they were too"):
        restored(run, tmp_path / "a")
    shutil.rmtree(code / ".git")
    with pytest.raises(ConfigError, match=r"is not in a repository here \(it was made in"):
        restored(run, tmp_path / "b")


def test_without_a_repository_it_has_the_files(tmp_path, code):
    run = tmp_path / "run"
    path = snapshot.write_snapshot(run, EXPERIMENT, "", [])
    assert {each.name for each in path.iterdir()} == {"snapshot.json", "distrl.zip"}
    assert restored(run, tmp_path / "a")[0] == tree(code)


def test_an_installation_names_its_folders_once(tmp_path, monkeypatch):
    for name in ("distrl/launch", "distrl/programs"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.setattr(snapshot, "PACKAGE", tmp_path / "distrl")
    assert snapshot.own_folders() == ["distrl"]


def test_the_users_modules_are_kept_by_path_and_by_name(tmp_path, monkeypatch):
    folder = tmp_path / "mine"
    (folder / "inner").mkdir(parents=True)
    files = {"my_file_a.py": "1", "inner/my_file_b.py": "2"}
    for name, text in files.items():
        (folder / name).write_text(text)
    (tmp_path / "my_lib").mkdir()
    (tmp_path / "my_lib" / "__init__.py").write_text("3")
    for path, name in (
        (folder / "my_file_a.py", "my_file_a"),
        (folder / "inner/my_file_b.py", "inner.my_file_b"),
        (tmp_path / "my_lib/__init__.py", "my_lib"),
        (tmp_path / "my_lib/gone.py", "my_lib.gone"),
    ):
        module = type(sys)(name)
        module.__file__ = str(path)
        monkeypatch.setitem(sys.modules, name, module)
    left_out = []
    kept = dict(snapshot._users_modules(folder, left_out))
    ours = ("my_file_", "my_lib")
    mine = {key: data.decode() for key, data in kept.items() if any(n in key for n in ours)}
    assert mine == {
        "experiment/my_file_a.py": "1",
        "experiment/inner/my_file_b.py": "2",
        "modules/my_lib/__init__.py": "3",
    }
    assert [line for line in left_out if "gone.py" in line]


def test_no_snapshot_is_one_line(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({}))
    with pytest.raises(ConfigError, match=r"has no snapshot of its code: it is of an older"):
        snapshot_code.run_with_snapshot("play", str(tmp_path), [])
    assert snapshot_code._without(["a", "--code", "snapshot", "--code=x", "b"], "--code") == [
        "a", "b",
    ]  # fmt: skip


def test_packages_are_as_they_are_installed():
    found = snapshot.installed_packages()
    import jax

    assert found["jax"] == jax.__version__
    assert not snapshot_code._differences(found)
    (line,) = snapshot_code._differences({**found, "jax": "0.0.1"})
    assert f"jax 0.0.1 (now {jax.__version__})" in line
