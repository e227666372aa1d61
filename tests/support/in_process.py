"""Commands that run in the tests' own process."""

import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from absl.testing import flagsaver

from distrl.launch import main
from distrl.launch.commands import train  # noqa: F401  (defines its flags, once in a process)


@pytest.fixture
def status_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., int]]:
    """A function that runs a command in this process and returns its exit status.

    It is for commands that are refused. The current folder is `tmp_path`. `load` is as of `main`.
    """

    def run(*arguments: str, load: Callable[[], Any] | None = None) -> int:
        with pytest.raises(SystemExit) as caught:
            main.main(["distrl", *arguments], load)
        assert isinstance(caught.value.code, int)
        return caught.value.code

    monkeypatch.chdir(tmp_path)
    handler, modules = signal.getsignal(signal.SIGINT), set(sys.modules)
    with flagsaver.flagsaver():
        yield run
    signal.signal(signal.SIGINT, handler)
    if "breaking" not in modules:  # a file of --experiment
        sys.modules.pop("breaking", None)
