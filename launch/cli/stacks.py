"""`distrl stacks RUN`: the Python stacks of every node of a running program."""

import time
from collections.abc import Iterator
from pathlib import Path

from distrl.errors import ConfigError
from distrl.launch.supervision.requests import STACKS, send_requests
from distrl.launch.supervision.stack_dump import DUMP_S, dump
from distrl.launch.supervision.status_file import read_status

_LOOK_S = 0.2


def stacks(arguments: list[str]) -> int:
    """Prints the stacks of a running program's nodes.

    Args:
      arguments: the command, the run's folder, and names of nodes; none: all.

    Returns:
      The exit status.

    Raises:
      ConfigError: see `read_status`; or there is no such node.
    """
    if len(arguments) < 2:
        raise ConfigError(
            "stacks: name a run's folder, as in `distrl stacks runs/NAME` or "
            "`distrl stacks runs/NAME actor/0`"
        )
    nodes = read_status(arguments[1])["nodes"]
    for name in arguments[2:]:
        if name not in nodes:
            raise ConfigError(f"stacks: no node {name!r}; there is {', '.join(nodes)}")
    shown: set[int] = set()
    away = [name for name in arguments[2:] or nodes if nodes[name]["host"] and nodes[name]["pid"]]
    for name, text in _asked_for(Path(arguments[1]), away):
        print(f"==== {name}, on host {nodes[name]['host']}\n{text}", flush=True)
    for name in arguments[2:] or nodes:
        pid = nodes[name]["pid"]
        if name in away:
            continue
        if pid is None:
            print(f"==== {name} does not run now ({nodes[name]['status']})")
        elif pid not in shown:  # nodes that are threads have one process
            shown.add(pid)
            print(f"==== {name}, process {pid}\n{dump(pid)}", flush=True)
    return 0


def _asked_for(run: Path, names: list[str]) -> Iterator[tuple[str, str]]:
    """Stacks of nodes on other hosts: their agents write them to the nodes' logs."""
    logs = {name: run / "logs" / f"{name.replace('/', '-')}.log" for name in names}
    before = {name: path.stat().st_size for name, path in logs.items()}
    if names:
        send_requests(run, {STACKS: names})
    deadline = time.monotonic() + DUMP_S
    for name, path in logs.items():
        text = ""
        while "Thread" not in text and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
            text = path.read_bytes()[before[name] :].decode(errors="replace")
        yield name, text or f"none came within {DUMP_S:g} s; see {path}\n"
