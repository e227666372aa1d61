"""`distrl actors RUN N`: scales a running program to N actors."""

import sys
import time
from pathlib import Path

from distrl.errors import ConfigError
from distrl.launch.run_dir.folder import CONFIG
from distrl.launch.supervision.requests import is_pending, send_requests
from distrl.launch.supervision.result import EXIT_FAILED, EXIT_FINISHED
from distrl.launch.supervision.status_file import read_status, suspension
from distrl.runtime.files import read_dict

_TIMEOUT_S = 60.0
_POLL_S = 0.2  # the launcher writes `status.json` every two seconds


def actors(arguments: list[str]) -> int:
    """Asks for a number of actors, and waits until that many run.

    Args:
      arguments: the command, the run folder and the number.

    Returns:
      The exit status: 1 if the actors do not start or stop in time.

    Raises:
      ConfigError: see `read_status`; the program cannot have this number, or is in lockstep.
    """
    if len(arguments) != 3 or not arguments[2].isdecimal():
        raise ConfigError(
            "actors: name a run folder and a number, as in `distrl actors runs/NAME 4`"
        )
    run, wanted = arguments[1], int(arguments[2])
    status = read_status(run, "actors")
    asleep = suspension(status)
    if asleep is not None:
        raise ConfigError(f"actors: {asleep}")
    names = [name for name in status["nodes"] if name.startswith("actor/")]
    if not names:
        raise ConfigError(f"actors: {run} is a run of one process, which has no actors to scale")
    if _in_lockstep(Path(run)):
        raise ConfigError(
            f"actors: {run} runs in lockstep, whose schedule counts on all of its {len(names)} "
            "actors; their number cannot change"
        )
    if not 1 <= wanted <= len(names):
        raise ConfigError(
            f"actors: cannot scale to {wanted}; this program can have 1 to {len(names)} actors "
            "(actors.max_actors)"
        )
    send_requests(Path(run), {"actor": wanted})
    deadline = time.monotonic() + _TIMEOUT_S
    while True:
        nodes = read_status(run, "actors")["nodes"]
        up = [name for name in names if nodes[name]["status"] == "up"]
        if not is_pending(Path(run)) and up == names[:wanted]:
            print(f"{wanted} actors running")
            return EXIT_FINISHED
        if time.monotonic() > deadline:
            print(
                f"distrl: actors: not scaled to {wanted} within {_TIMEOUT_S:g} s; running: "
                f"{', '.join(up) or 'none'}; see {run}/logs/supervisor.log",
                file=sys.stderr,
            )
            return EXIT_FAILED
        time.sleep(_POLL_S)


def _in_lockstep(run: Path) -> bool:
    config = read_dict(run / CONFIG) or {}
    return bool((config.get("experiment") or {}).get("lockstep"))
