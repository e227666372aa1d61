"""Checkpoints on disk: complete or absent, the newest, the best; damaged ones are skipped."""

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from distrl.checkpointing import store as store_module
from distrl.checkpointing.store import Checkpoint, Checkpoints
from distrl.config import CheckpointConfig
from distrl.errors import ConfigError
from distrl.runtime.lives import lives, next_life

ROOT = Path(__file__).parents[3]


def write(store, version, mean_return=None, full_window=True, text="x"):
    def fill(folder):
        (folder / "sub").mkdir()
        (folder / "params").write_text(text)
        (folder / "sub" / "table").write_text(text * 1000)
        return {"mean_return": mean_return, "full_window": full_window}

    return store.write(version, fill)


def names(store):
    return [path.name for path in store.paths()]


def test_a_written_checkpoint_is_read(tmp_path):
    store = Checkpoints(tmp_path)
    path = write(store, 12)
    assert path == tmp_path / "checkpoints" / "000012"
    checkpoint = store.latest()
    assert checkpoint == Checkpoint.read(path)
    assert checkpoint.manifest["version"] == 12
    assert set(checkpoint.manifest["files"]) == {"params", "sub/table"}


def test_a_write_does_not_sleep(tmp_path, monkeypatch):
    """Under libfaketime a sleep of no time fails."""

    def sleep(seconds):
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(time, "sleep", sleep)
    assert write(Checkpoints(tmp_path), 12).name == "000012"


def test_the_newest_and_the_best_are_kept(tmp_path):
    store = Checkpoints(tmp_path, keep=2)
    for version, mean in enumerate([None, 5.0, 30.0, 7.0, float("nan"), 8.0]):
        write(store, version, mean)
    assert names(store) == ["000002", "000004", "000005"]
    assert store.best().path.name == "000002"
    best = json.loads((store.folder / "best.json").read_text())
    assert best == {"checkpoint": "000002", "mean_return": 30.0}


def test_a_manifest_is_read_once_and_again_if_it_changes(tmp_path, monkeypatch):
    store = Checkpoints(tmp_path, keep=100)
    for version in range(5):
        write(store, version, 10.0 - version)
    parse, parsed = json.loads, []
    monkeypatch.setattr("json.loads", lambda text: parsed.append(parse(text)) or parsed[-1])
    write(store, 5, 1.0)
    assert [manifest["version"] for manifest in parsed] == [5]
    manifest = tmp_path / "checkpoints" / "000003" / "manifest.json"
    manifest.write_text(manifest.read_text().replace("7.0", "70.0"))
    assert store.best(only=()).path.name == "000003"
    manifest.write_text("")  # damaged
    assert store.best(only=()).path.name == "000000"
    assert names(store) == ["000003", "000000", "000001", "000002", "000004", "000005"]


def test_what_is_known_of_a_checkpoint_ends_with_it(tmp_path):
    store = Checkpoints(tmp_path, keep=1)
    for mean in (5.0, 2.0, 7.0):  # of the same name, as of a run that is resumed
        shutil.rmtree(tmp_path / "checkpoints", ignore_errors=True)
        path = write(store, 4, mean)
        assert json.loads((store.folder / "best.json").read_text())["mean_return"] == mean
    write(store, 5, 8.0)
    assert names(store) == ["000005"] and path not in store_module._glances


def test_a_few_lucky_episodes_are_not_the_best(tmp_path):
    store = Checkpoints(tmp_path)
    write(store, 1, 500.0, full_window=False)
    assert store.best().path.name == "000001"
    write(store, 2, 10.0)
    assert store.best().path.name == "000002"


def test_one_version_twice(tmp_path):
    store = Checkpoints(tmp_path)
    for version in (7, 7, 7, 10_000_000):
        write(store, version)
    assert names(store) == ["000007-2", "000007-3", "10000000"]
    assert Checkpoints(tmp_path).latest().path.name == "10000000"


def test_a_run_resumed_from_an_older_checkpoint(tmp_path):
    """What it writes is the newest, whatever the versions of the damaged ones."""
    store = Checkpoints(tmp_path, keep=2)
    for version in (100, 200, 300):
        write(store, version)
    for version in (200, 300):
        (store.folder / f"000{version}" / "params").unlink()
    write(store, 110)
    assert store.latest(lambda line: None).path.name == "000110"
    write(store, 120)
    assert names(store) == ["000110", "000120"]


@pytest.mark.parametrize("damage", ["size", "byte", "missing", "manifest", "no manifest"])
def test_a_damaged_checkpoint_is_skipped_with_one_line(tmp_path, damage):
    store = Checkpoints(tmp_path)
    write(store, 1)
    path = write(store, 2)
    file = path / "sub" / "table"
    if damage == "size":
        os.truncate(file, 10)
    elif damage == "byte":
        file.write_text("x" * 500 + "y" + "x" * 499)
    elif damage == "missing":
        file.unlink()
    elif damage == "manifest":
        os.truncate(path / "manifest.json", 20)
    else:
        (path / "manifest.json").unlink()
    lines = []
    assert store.latest(lines.append).path.name == "000001"
    (line,) = lines
    assert line.startswith("distrl: checkpoint skipped: ") and "000002" in line
    assert "\n" not in line
    write(store, 3)  # the damaged one does no harm
    assert store.latest(lines.append).path.name == "000003"


def test_if_all_are_damaged_the_newest_is_not_none(tmp_path):
    """None would mean that nothing was ever saved, and the run would start from the beginning."""
    store = Checkpoints(tmp_path)
    assert store.latest() is None
    os.truncate(write(store, 1) / "params", 3)
    (write(store, 2) / "manifest.json").unlink()
    lines = []
    with pytest.raises(ConfigError, match="none of the 2 checkpoints") as error:
        store.latest(lines.append)
    message = str(error.value)
    assert "000001 is damaged: params has 3 bytes" in message and "\n" not in message
    assert "000002 is not a complete checkpoint: manifest.json" in message and not lines


def test_a_failed_write_leaves_nothing(tmp_path):
    store = Checkpoints(tmp_path)
    write(store, 1)

    def fill(folder):
        (folder / "half").write_text("x")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        store.write(2, fill)
    assert [path.name for path in store.folder.iterdir() if path.is_dir()] == ["000001"]


WRITER = """
import sys
from pathlib import Path
from distrl.checkpointing import store as store_module
from distrl.checkpointing.store import Checkpoints
store = Checkpoints(sys.argv[1], keep=2)
start = int(sys.argv[2])
def fill(folder):
    for i in range(5):
        (folder / str(i)).write_text(str(i) * 10000)
    return {}
print("ready", flush=True)
for version in range(start, start + 100000):
    store.write(version, fill)
"""


def test_a_kill_at_any_time_leaves_a_complete_checkpoint(tmp_path):
    store = Checkpoints(tmp_path)
    version = 1
    for kill in range(8):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path), str(version)],
            env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE,
        )  # fmt: skip
        writer.stdout.readline()
        deadline = time.monotonic() + 30
        while not names(store) or int(names(store)[-1]) < version:
            assert time.monotonic() < deadline and writer.poll() is None
        time.sleep(0.003 * kill)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        lines = []
        latest = store.latest(lines.append)
        assert latest is not None and not lines
        version = latest.manifest["version"] + 1
    write(store, version)
    assert not list(store.folder.glob(".new-*"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"period": 0}, "checkpoint.period must be more than 0 s, or None"),
        ({"keep": 0}, "checkpoint.keep must be a whole number, 1 or more"),
        ({"grace": 0.0}, "checkpoint.grace must be more than 0 s"),
    ],
)
def test_invalid_settings(settings, message):
    with pytest.raises(ConfigError, match=message):
        CheckpointConfig(**settings)


def _begin(run_dir, out):
    out.put([next_life(run_dir, "actor/0") for _ in range(20)])


def test_no_two_starts_get_the_same_life(tmp_path):
    assert lives(tmp_path) == {}
    context = multiprocessing.get_context("spawn")
    out = context.Queue()
    processes = [context.Process(target=_begin, args=(str(tmp_path), out)) for _ in range(3)]
    for process in processes:
        process.start()
    all_lives = sorted(life for _ in processes for life in out.get(timeout=60))
    for process in processes:
        process.join(10)
    assert all_lives == list(range(60))
    assert next_life(tmp_path, "actor/1") == 0
    assert lives(tmp_path) == {"actor/0": 60, "actor/1": 1}
    assert next_life(tmp_path, "single_process", "actor/0", "actor/1") == 60
    assert next_life(tmp_path, "actor/1") == 61
