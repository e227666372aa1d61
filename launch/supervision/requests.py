"""What a user wants of a running program: `distrl actors RUN N`, stacks of nodes elsewhere.

The wish is a file in the run's folder, which the program's launcher looks for every second.
"""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from distrl.errors import ConfigError, DeadlineExceeded
from distrl.launch.cli import status
from distrl.runtime.files import write_json

_NAME = "wishes.json"
_DONE_S = 60.0  # for a wish to come true
_LOOK_S = 0.2  # between two looks at `status.json`, which is written every two seconds


class Requests:
    """The launcher's side."""

    def __init__(self, run_dir: Path):
        self._path = run_dir / _NAME

    def take(self) -> Iterator[tuple[str, Any]]:
        """Each wish once: a group, and how many of its nodes are wanted; or "stacks", and names."""
        try:
            wishes = json.loads(self._path.read_text())
            self._path.unlink()
        except FileNotFoundError:
            return
        yield from wishes.items()


def request(run: Path, wishes: dict[str, Any]) -> None:
    """The user's side; see `Requests.take`."""
    write_json(run / _NAME, wishes, durable=False)


def actors(arguments: list[str]) -> int:
    """Asks for a number of actors, and waits until they are there.

    Args:
      arguments: the command, the run's folder, the number.

    Returns:
      The exit status.

    Raises:
      ConfigError: see `status.read`; or there cannot be so many.
      DeadlineExceeded: they were not there in time.
    """
    if len(arguments) != 3 or not arguments[2].isdecimal():
        raise ConfigError("actors: name a run's folder and a number, as in `distrl actors RUN 4`")
    run, wanted = arguments[1], int(arguments[2])
    names = [name for name in status.read(run)["nodes"] if name.startswith("actor/")]
    if not 1 <= wanted <= len(names):
        raise ConfigError(
            f"actors: {wanted} of them cannot be; this program has room for 1 to {len(names)}, "
            "which is its actors.max_actors"
        )
    path = Path(run) / _NAME
    request(Path(run), {"actor": wanted})
    deadline = time.monotonic() + _DONE_S
    while True:
        nodes = status.read(run)["nodes"]
        up = [name for name in names if nodes[name]["status"] == "up"]
        if not path.exists() and up == names[:wanted]:
            print(f"{wanted} actors act now")
            return 0
        if time.monotonic() > deadline:
            raise DeadlineExceeded(
                f"actors: {', '.join(up) or 'none'} act after {_DONE_S:g} s, not {wanted}; "
                f"see {run}/logs/supervisor.log"
            )
        time.sleep(_LOOK_S)
