"""Operations of the operating system that are counted, and of which one is refused."""

import builtins
import errno
import fcntl
import io
import os
import pathlib
import select
import selectors
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_ERRORS = {  # what the kernel says where it has no room, no descriptor, no process left
    "fork": errno.EAGAIN,
    "Popen": errno.EAGAIN,
    "kill": errno.EPERM,
    "killpg": errno.EPERM,
    **dict.fromkeys(("open", "pipe", "dup", "socketpair", "socket", "accept"), errno.EMFILE),
    **dict.fromkeys(("read", "recv", "close", "waitid", "waitpid", "select", "poll"), errno.EIO),
}
_PROCESSES = ("fork", "kill", "killpg", "waitid", "waitpid")
_DESCRIPTORS = ("open", "close", "read", "write", "pipe", "dup", "fsync", "fstat", "set_blocking")
_FILES = ("replace", "rename", "unlink", "remove", "mkdir", "stat", "listdir", "scandir")
_SOCKET = ("recv", "send", "sendall", "setblocking", "bind", "listen", "close")
_ACCESSOR = ("open", "stat", "listdir", "scandir", "mkdir", "unlink", "rename", "replace")


class _File:
    """A file whose operations count, too."""

    def __init__(self, file: Any, refusals: "Refusals"):
        self._file = file
        self._refusals = refusals

    def read(self, *arguments: Any) -> Any:
        self._refusals.count("read")
        return self._file.read(*arguments)

    def write(self, data: Any) -> Any:
        self._refusals.count("write")
        return self._file.write(data)

    def __enter__(self) -> "_File":
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def __iter__(self) -> Iterator[Any]:
        return iter(self._file)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class Refusals:
    """Counts the operations of this thread and process on files, processes and sockets.

    Args:
      refused: number of the one operation that fails; None: none does.

    Attributes:
      operations: name and place in the code of each operation so far.
    """

    def __init__(self, refused: int | None = None):
        self.operations: list[str] = []
        self._refused = refused
        self._pid = os.getpid()
        self._thread = threading.get_ident()
        self._counting = False

    def count(self, name: str) -> None:
        """Counts an operation, or refuses it."""
        elsewhere = os.getpid() != self._pid or threading.get_ident() != self._thread
        if elsewhere or not self._counting:
            return
        number = len(self.operations)
        self.operations.append(f"{name} at {_place()}")
        if number == self._refused:
            code = _ERRORS.get(name, errno.ENOSPC)
            raise OSError(code, f"{os.strerror(code)} (refused)")

    def pause(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a function whose own operations do not count."""

        def uncounted(*arguments: Any, **keywords: Any) -> Any:
            counting, self._counting = self._counting, False
            try:
                return function(*arguments, **keywords)
            finally:
                self._counting = counting

        return uncounted

    def _wrap(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **keywords: Any) -> Any:
            if name == "close":  # Linux releases the descriptor even where it reports an error
                function(*arguments, **keywords)
                return self.count(name)
            self.count(name)
            result = function(*arguments, **keywords)
            opened = name == "open" and self._counting and hasattr(result, "read")
            return _File(result, self) if opened else result

        return counted

    @contextmanager
    def counting(self, monkeypatch: Any) -> Iterator[None]:
        """Counts, and refuses, within its block."""
        for owner, names in (
            (os, (*_PROCESSES, *_DESCRIPTORS, *_FILES)),
            (builtins, ("open",)),
            (io, ("open",)),
            (fcntl, ("flock",)),
            (select, ("select",)),
            (subprocess, ("Popen",)),
            (socket, ("socketpair",)),
            (socket.socket, _SOCKET),
            (selectors.DefaultSelector, ("select", "register")),
        ):
            for name in names:
                monkeypatch.setattr(owner, name, self._wrap(name, getattr(owner, name)))
        accessor = getattr(pathlib, "_NormalAccessor", None)  # of Python 3.10
        for name in _ACCESSOR if accessor is not None else ():
            function = staticmethod(self._wrap(name, getattr(accessor, name)))
            monkeypatch.setattr(accessor, name, function)
        self._counting = True
        try:
            yield
        finally:
            self._counting = False


def _place() -> str:
    """Returns the innermost line of this project that called."""
    frame = sys._getframe(2)
    while frame.f_back is not None:
        name = frame.f_code.co_filename
        if "/launch/" in name or "/distrl/" in name:
            return f"{name.rpartition('/')[2]}:{frame.f_lineno} {frame.f_code.co_name}"
        frame = frame.f_back
    return "?"
