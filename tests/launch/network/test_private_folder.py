"""Folders for Unix sockets, wherever temporary files are."""

import errno
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from distrl.errors import ConfigError
from distrl.launch.network.private_folder import NAME_ROOM, new_folder


@pytest.fixture
def short_folder() -> Iterator[str]:
    """A new folder with a path of 16 characters; those of pytest's are longer."""
    folder = tempfile.mkdtemp(dir="/tmp")
    yield folder
    shutil.rmtree(folder)


def test_sockets_fit_whatever_the_length_of_the_parents_path(
    short_folder: str, monkeypatch: pytest.MonkeyPatch
):
    for length in range(30, 61):
        parent = Path(short_folder, "p" * (length - len(short_folder) - 1))
        parent.mkdir()
        monkeypatch.setattr("tempfile.tempdir", str(parent))
        folder = new_folder()
        for name in ("s:15000", "s" * NAME_ROOM):
            with socket.socket(socket.AF_UNIX) as server:
                server.bind(f"{folder}/{name}")
        shutil.rmtree(folder)


def test_shared_memory_is_taken_where_no_folder_for_temporary_files_can_be_written(
    monkeypatch: pytest.MonkeyPatch,
):
    make, nowhere = tempfile.mkdtemp, "No usable temporary directory found in ['/tmp', '/']"

    def no_folder() -> NoReturn:
        raise FileNotFoundError(errno.ENOENT, nowhere)

    def make_in(**options: Any) -> str:
        if options["dir"] not in writable:
            raise OSError(errno.EROFS, "Read-only file system")
        return make(**options)

    monkeypatch.setattr(tempfile, "gettempdir", no_folder)
    monkeypatch.setattr(tempfile, "mkdtemp", make_in)
    writable = ["/dev/shm"]
    folder = new_folder()
    assert folder.parent == Path("/dev/shm")
    folder.rmdir()
    writable.clear()
    with pytest.raises(ConfigError) as refused:
        new_folder()
    assert str(refused.value) == (
        f"no folder for Unix sockets; set TMPDIR: {nowhere}; /tmp: Read-only file system; "
        "/dev/shm: Read-only file system"
    )
