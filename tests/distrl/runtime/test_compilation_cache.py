"""What is compiled is kept in a folder of the user's, each entry as a whole."""

import os
import subprocess
import sys

import pytest

from distrl.runtime import compilation_cache
from tests.support.commands import ROOT

SCRIPT = """
from distrl.runtime.compilation_cache import use_compilation_cache
use_compilation_cache()
import jax
print(jax.config.jax_compilation_cache_dir)
print(jax.jit(lambda x: x * 3 + 1)(2.0))
"""


def run(home, **variables):
    unset = ("JAX_COMPILATION_CACHE_DIR", "XDG_CACHE_HOME", compilation_cache.VARIABLE)
    kept = {name: value for name, value in os.environ.items() if name not in unset}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**kept, "HOME": str(home), "PYTHONPATH": str(ROOT), **variables},
        capture_output=True,
        text=True,
        timeout=60.0,
        check=False,
    )
    folder, value = done.stdout.split()
    assert value == "7.0", done.stderr
    return folder, done.stderr


def entries(folder):
    return {path for path in folder.rglob("*") if path.is_file()}


def test_runs_share_what_they_compile(tmp_path):
    folder, _ = run(tmp_path)
    assert folder.startswith(f"{tmp_path}/.cache/distrl/jax/")
    before = entries(tmp_path)
    assert before
    written = {path: path.stat().st_mtime_ns for path in before}
    assert run(tmp_path) == (folder, "")
    assert {path: path.stat().st_mtime_ns for path in entries(tmp_path)} == written
    for path in before:  # a damaged one is compiled again, and replaced
        path.write_bytes(b"half")
    assert run(tmp_path)[0] == folder
    assert entries(tmp_path) == before
    assert all(path.stat().st_size > 4 for path in before)


@pytest.mark.parametrize(
    "name, value, folder",
    [
        (compilation_cache.VARIABLE, "off", "None"),
        (compilation_cache.VARIABLE, "{}/mine", "{}/mine/"),
        ("JAX_COMPILATION_CACHE_DIR", "{}/jax", "{}/jax"),
    ],
)
def test_the_user_chooses(monkeypatch, tmp_path, name, value, folder):
    import jax

    chosen = value.format(tmp_path) if name.startswith("JAX") else None
    monkeypatch.delenv(compilation_cache.VARIABLE, raising=False)
    monkeypatch.setenv(name, value.format(tmp_path))
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", chosen)
    try:
        compilation_cache.use_compilation_cache()
        assert str(jax.config.jax_compilation_cache_dir).startswith(folder.format(tmp_path))
    finally:
        jax.config.update("jax_compilation_cache_dir", before)


def test_a_folder_that_others_can_write_to_is_not_used(monkeypatch, tmp_path):
    monkeypatch.setenv(compilation_cache.VARIABLE, str(tmp_path))
    folder = compilation_cache._folder()
    folder.chmod(0o770)
    assert compilation_cache._folder() is None


def test_the_oldest_entries_are_removed(tmp_path):
    for age, name in enumerate("cab"):
        (tmp_path / name).write_bytes(b"x" * 10)
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    compilation_cache.prune(tmp_path, 20)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "c"]
