"""Which code a program runs: it is found where there is a repository, and never fails."""

import json
import shutil
import subprocess

import pytest

from distrl.runtime import provenance
from distrl.runtime.provenance import revision

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


@pytest.fixture
def file(tmp_path):
    """A file that a repository tracks, in its one commit."""
    path = tmp_path / "mine.py"
    path.write_text("x = 1\n")
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "mine.py"], ["commit", "-q", "-m", "first"]):
        subprocess.run([*git, *command], check=True, timeout=50)
    return path


@needs_git
def test_a_repository_clean_and_dirty(file):
    clean = revision(file)
    assert clean["dirty"] is False and len(clean["commit"]) == 40
    (file.parent / "other.py").write_text("not tracked")
    assert revision(file) == clean
    file.write_text("x = 2\n")
    assert revision(file) == {**clean, "dirty": True}


@needs_git
def test_a_file_that_is_only_in_a_repositorys_folder_is_not_its_code(file):
    """As a wheel in a virtual environment in the user's repository."""
    installed = file.parent / "venv" / "distrl.py"
    installed.parent.mkdir()
    installed.write_text("")
    assert revision(installed) is None


@needs_git
def test_another_repositorys_variables_do_not_matter(file, monkeypatch, tmp_path):
    expected = revision(file)
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    assert revision(file) == expected


@pytest.mark.parametrize("git", [None, "#!/bin/sh\nexit 3\n", "#!/bin/sh\nexec sleep 60\n"])
def test_without_a_git_that_answers(tmp_path, monkeypatch, git):
    if git is not None:
        (tmp_path / "git").write_text(git)
        (tmp_path / "git").chmod(0o755)
    monkeypatch.setattr(provenance, "_GIT_S", 0.1)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin" if git else str(tmp_path))
    found = provenance.provenance("mine.py")
    assert found["code"] == {"distrl": None, "experiment": None}
    assert found["versions"]["python"] and found["versions"]["numpy"]


def test_an_install_from_a_repository(monkeypatch):
    class Distribution:
        version = "0.1"

        def read_text(self, name):
            assert name == "direct_url.json"
            return json.dumps({"url": "https://x", "vcs_info": {"commit_id": "abc"}})

    monkeypatch.setattr(provenance, "_git", lambda *arguments: None)
    monkeypatch.setattr(provenance.metadata, "distribution", lambda name: Distribution())
    assert provenance.provenance()["code"] == {"distrl": {"commit": "abc", "dirty": False}}
