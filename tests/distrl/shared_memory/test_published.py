"""Versions in files that never change: what readers see, and what is left in shared memory."""

import os

import numpy as np
import pytest

from distrl.shared_memory import segment
from distrl.shared_memory.process import Process
from distrl.shared_memory.published import PublishedVersions, read_version, shared_memory_domain


@pytest.fixture
def name():
    chosen = f"test-{os.getpid()}"
    yield chosen
    assert not left(chosen)


def left(name):
    return sorted(file.name for file in segment.existing() if file.name.startswith(f"{name}."))


def fill(value):
    def write(memory):
        memory[:] = value

    return write


def test_who_has_mapped_a_version_keeps_it(name):
    versions = PublishedVersions(name, Process.this())
    first = versions.publish(1, 5000, fill(1))
    held = read_version(first)
    second = versions.publish(2, 5000, fill(2))
    assert left(name) == [f"{name}.1", f"{name}.2"]
    versions.keep({2})
    with pytest.raises(FileNotFoundError):
        read_version(first)
    np.testing.assert_array_equal(held, np.ones(5000))
    np.testing.assert_array_equal(read_version(second), np.full(5000, 2))
    with pytest.raises(ValueError, match="read-only"):
        held[0] = 3
    versions.close()


def test_a_new_life_removes_what_the_one_before_has_left(name):
    PublishedVersions(name, Process.this()).publish(1, 10, fill(1))
    # Another one, which was killed before it had named it:
    segment.create(f"{name}.2", 10, Process.this(), segment.VERSION)
    again = PublishedVersions(name, Process.this())
    assert left(name) == []
    assert again.publish(1, 10, fill(2)) is not None  # a learner may begin again at a version
    again.close()


def test_where_there_is_no_memory_there_is_no_file(name, monkeypatch):
    def refuse(*arguments):
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    assert PublishedVersions(name, Process.this()).publish(1, 10, fill(1)) is None


def test_the_domain_is_the_same_for_processes_of_a_machine():
    pid = os.fork()
    if pid == 0:
        os._exit(0 if shared_memory_domain() == _DOMAIN else 1)
    assert os.waitpid(pid, 0)[1] == 0


_DOMAIN = shared_memory_domain()
