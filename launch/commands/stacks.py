"""`distrl stacks RUN`: prints the Python stacks of a run's nodes."""

import time
from collections.abc import Iterator
from pathlib import Path

from distrl.errors import ConfigError
from distrl.launch.supervision.requests import STACKS, send_requests
from distrl.launch.supervision.stack_dump import DUMP_S, dump
from distrl.launch.supervision.status_file import launcher_in, read_status

_POLL_S = 0.2


def stacks(arguments: list[str]) -> int:
    """Prints the stacks of a running program's nodes.

    Args:
      arguments: the command, the run folder, and names of nodes; without names: all nodes.

    Returns:
      The exit status.

    Raises:
      ConfigError: see `read_status`; or the program has no such node.
    """
    if len(arguments) < 2:
        raise ConfigError(
            "stacks: name a run folder, as in `distrl stacks runs/NAME` or "
            "`distrl stacks runs/NAME actor/0`"
        )
    status = read_status(arguments[1], "stacks")
    nodes, launcher = status["nodes"], launcher_in(status)
    for name in arguments[2:]:
        if name not in nodes:
            raise ConfigError(f"stacks: unknown node {name!r}; choose from: {', '.join(nodes)}")
    if launcher.is_elsewhere and not all(nodes[name]["host"] for name in arguments[2:] or nodes):
        raise ConfigError(f"stacks: {arguments[1]} runs as {launcher.name}; ask there")
    shown: set[int] = set()
    remote = [name for name in arguments[2:] or nodes if nodes[name]["host"] and nodes[name]["pid"]]
    for name, text in _remote_stacks(Path(arguments[1]), remote):
        print(f"==== {name}, on host {nodes[name]['host']}\n{text}", flush=True)
    for name in arguments[2:] or nodes:
        pid = nodes[name]["pid"]
        if name in remote:
            continue
        if pid is None:
            state = nodes[name]["status"]  # a remote node's process is known later
            why = "its process is not known yet" if state == "up" else "it is not running"
            print(f"==== {name}: {why} ({state})")
        elif pid not in shown:  # nodes that are threads have one process
            shown.add(pid)
            print(f"==== {name}, process {pid}\n{dump(pid)}", flush=True)
    return 0


def _remote_stacks(run_dir: Path, names: list[str]) -> Iterator[tuple[str, str]]:
    """Yields names and stacks of nodes on other hosts; daemons write the stacks to the logs."""
    logs = {name: run_dir / "logs" / f"{name.replace('/', '-')}.log" for name in names}
    before = {name: path.stat().st_size for name, path in logs.items()}
    if names:
        send_requests(run_dir, {STACKS: names})
    deadline = time.monotonic() + DUMP_S
    for name, path in logs.items():
        text = ""
        while "Thread" not in text and time.monotonic() < deadline:
            time.sleep(_POLL_S)
            text = path.read_bytes()[before[name] :].decode(errors="replace")
        yield name, text or f"no stacks within {DUMP_S:g} s; see {path}\n"
