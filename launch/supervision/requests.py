"""Requests of a user to a running program, such as another number of actors.

A request is a file in the run folder, `requests.json`, which the launcher looks for every second.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from distrl.errors import ConfigError
from distrl.runtime.files import locked, owner, update_json

_FILE_NAME = "requests.json"
STACKS = "stacks"  # the request whose value is a list of node names


class Requests:
    """The launcher's side: reads the requests made to its program.

    Args:
      run_dir: the run folder.
      say: shows a line to the user.
    """

    def __init__(self, run_dir: Path, say: Callable[[str], None] = print) -> None:
        self._path = run_dir / _FILE_NAME
        self._say = say

    def drop(self) -> None:
        """Drops the requests that the previous program has not taken."""
        self._path.unlink(missing_ok=True)

    def take(self) -> Iterator[tuple[str, Any]]:
        """Yields each new request once: a group and a number of nodes, or `STACKS` and names.

        Raises:
          OSError: the file cannot be read or removed; no request is lost.
        """
        if not self._path.exists():
            return
        try:
            with locked(self._path, 0.0):
                data = self._path.read_bytes()
                self._path.unlink()
        except TimeoutError:  # somebody may be adding a request: they are taken the next time
            return
        try:
            requests = json.loads(data)
        except ValueError:
            requests = None
        if not isinstance(requests, dict):
            self._say(f"{self._path} holds no requests and is ignored: {data[:60]!r}")
            return
        for name, value in requests.items():
            if _is_valid(name, value):
                yield name, value
            else:
                self._say(f"{self._path}: ignored {name}={value!r}, which is no request")


def _is_valid(name: str, value: Any) -> bool:
    if name == STACKS:
        return isinstance(value, list)
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def send_requests(run_dir: Path, requests: dict[str, Any]) -> None:
    """Makes requests to a run's program, beside those that it has not taken; see `Requests.take`.

    Of a request of the same name the value is replaced; lists are joined.

    Raises:
      ConfigError: the folder cannot be written, as another user's.
    """

    def add(pending: dict[str, Any]) -> None:
        for name, value in requests.items():
            before = pending.get(name)
            if isinstance(before, list) and isinstance(value, list):
                value = [*before, *value]
            pending[name] = value

    try:
        update_json(run_dir / _FILE_NAME, add)
    except OSError as error:
        raise ConfigError(
            f"{run_dir} is {owner(run_dir)}'s, and its program cannot be asked: "
            f"{error.strerror or error}"
        ) from error


def is_pending(run_dir: Path) -> bool:
    """Returns whether the program has not taken the last requests yet."""
    return (run_dir / _FILE_NAME).exists()
