"""Folders for Unix sockets, wherever temporary files are."""

import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

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
