"""`distrl logs RUN NODE`: the output of a run's node."""

import contextlib
import os
import sys
import time
from pathlib import Path
from typing import TextIO

from distrl.errors import ConfigError
from distrl.launch.runs.arguments import Parser
from distrl.launch.runs.run import load_run
from distrl.launch.supervision.launcher_process import is_running

_POLL_S = 0.2


def logs(arguments: list[str]) -> int:
    """Prints a node's log; with `-f` also what it prints from now on, until the run ends.

    Args:
      arguments: the command, the run folder, the node's name, `-f`.

    Returns:
      The exit status.

    Raises:
      ConfigError: there is no such log.
    """
    parser = Parser("logs").add("run").add("node", nargs="?").add("-f", action="store_true")
    values = parser.parse_args(arguments[1:])
    run_dir = load_run(values.run, command="logs").path
    folder = run_dir / "logs"
    names = sorted(path.stem for path in folder.glob("*.log"))
    if not names:
        raise ConfigError(f"logs: {run_dir} has no logs: single_process prints to its own terminal")
    path = folder / f"{str(values.node).replace('/', '-')}.log"
    if values.node is None or path.stem not in names:
        raise ConfigError(f"logs: name a node of {run_dir}: {', '.join(names)}")
    _print(path, run_dir, values.f)
    return 0


def _print(path: Path, run_dir: Path, follow: bool) -> None:
    with contextlib.ExitStack() as opened:
        file = opened.enter_context(_open(path))
        while True:
            ended = not follow or not is_running(run_dir)
            is_full = _is_full(file, path)  # before it is read: then nothing more comes
            for line in file:
                sys.stdout.write(line)
            sys.stdout.flush()
            if is_full:
                opened.close()
                file = opened.enter_context(_open(path))
            elif ended:
                return
            else:
                time.sleep(_POLL_S)


def _open(path: Path) -> TextIO:
    return open(path, encoding="utf-8", errors="replace")


def _is_full(file: TextIO, path: Path) -> bool:
    """Returns whether the log continues in a new file; see `LogFile`."""
    try:
        return not os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:  # in a moment; or the user has removed it
        return False
