"""Files that several processes change."""

import contextlib
import errno
import fcntl
import json
import os
import stat

import pytest

from distrl.runtime import files
from distrl.runtime.files import update_json
from distrl.runtime.lives import next_life


def lock_in_child(folder):
    """Returns the pid of a process that locks a folder until it is killed, and has done so."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        fcntl.flock(os.open(folder, os.O_RDONLY), fcntl.LOCK_EX)
        os.write(writer, b".")
        os.close(writer)
        os.read(os.pipe()[0], 1)  # forever
        os._exit(1)
    os.close(writer)
    with os.fdopen(reader, "rb") as locked:
        assert locked.read(1) == b"."
    return pid


def test_a_file_that_another_process_keeps_locked_is_named_with_it(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "LOCK_S", 0.05)
    pid = lock_in_child(tmp_path)
    try:
        with pytest.raises(TimeoutError) as error:  # an OSError: the start is tried again
            next_life(tmp_path, "actor/0")
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    assert str(error.value) == (
        f"{tmp_path / 'lives.json'}: its folder has been locked for 0.05 s by process {pid}: "
        f"resume it if it is stopped (kill -CONT {pid}), or end it"
    )
    assert next_life(tmp_path, "actor/0") == 0  # a dead process releases it


@pytest.mark.parametrize(
    ("number", "passes"), [(errno.EINVAL, True), (errno.EOPNOTSUPP, True), (errno.EIO, False)]
)
def test_a_file_system_may_not_wait_for_a_folder(tmp_path, monkeypatch, number, passes):
    real, failing = os.fsync, ["folder"]

    def fsync(descriptor):
        kind = "folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file"
        if kind in failing:
            raise OSError(number, os.strerror(number))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with contextlib.nullcontext() if passes else pytest.raises(OSError, match=os.strerror(number)):
        files.write_json(tmp_path / "a.json", [1])
    assert json.loads((tmp_path / "a.json").read_text()) == [1]
    failing[:] = ["file"]
    with pytest.raises(OSError, match=os.strerror(number)):  # what cannot be written is no success
        files.write_json(tmp_path / "b.json", [2])
    assert not (tmp_path / "b.json").exists()


def test_a_holder_that_cannot_be_seen(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "LOCK_S", 0.05)
    locks = tmp_path / "locks"
    locks.write_text("1: POSIX  ADVISORY  WRITE 7 00:01:2 0 EOF\n1: -> FLOCK ADVISORY WRITE 8 0\n")
    monkeypatch.setattr(files, "_LOCKS", locks)
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with pytest.raises(TimeoutError, match="perhaps on another machine: resume it or end it"):
            update_json(tmp_path / "a.json", lambda data: None)
    finally:
        os.close(descriptor)


def test_a_lock_that_is_released_in_time_is_waited_for(tmp_path, monkeypatch):
    descriptor = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    monkeypatch.setattr(files.time, "sleep", lambda seconds: fcntl.flock(descriptor, fcntl.LOCK_UN))
    try:
        update_json(tmp_path / "a.json", lambda data: data.update(n=1))
    finally:
        os.close(descriptor)
    assert json.loads((tmp_path / "a.json").read_text()) == {"n": 1}
