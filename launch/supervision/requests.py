"""Requests of a user to a running program, such as another number of actors.

A request is a file in the run folder, `wishes.json`, which the launcher looks for every second.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from distrl.runtime.files import write_json

_FILE_NAME = "wishes.json"
STACKS = "stacks"  # the request whose value is a list of node names


class Requests:
    """The launcher's side: reads the requests made to its program."""

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / _FILE_NAME

    def take(self) -> Iterator[tuple[str, Any]]:
        """Yields each new request once: a group and a number of nodes, or `STACKS` and names."""
        try:
            requests = json.loads(self._path.read_text())
            self._path.unlink()
        except FileNotFoundError:
            return
        yield from requests.items()


def send_requests(run_dir: Path, requests: dict[str, Any]) -> None:
    """Makes requests to a run's program; see `Requests.take`."""
    write_json(run_dir / _FILE_NAME, requests, durable=False)


def is_pending(run_dir: Path) -> bool:
    """Returns whether the program has not taken the last requests yet."""
    return (run_dir / _FILE_NAME).exists()
