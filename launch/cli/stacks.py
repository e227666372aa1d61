"""`distrl stacks RUN`: the Python stacks of every node of a running program."""

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from distrl.errors import ConfigError
from distrl.launch.cli import status
from distrl.launch.supervision.requests import request

_DUMP_S = 10.0
_LOOK_S = 0.2


def dump(pid: int, timeout: float = _DUMP_S) -> str:
    """The Python stacks of a process's threads, also of one that is stopped or will not answer.

    Returns:
      What py-spy prints, or why it could not.
    """
    program = _py_spy()
    if program is None:
        return "py-spy is not installed: no stacks\n"
    # It aborts in some native code that it finds on a stack (EnvPool's); it does not look at that
    # where it does not stop the process.
    for how in ([], ["--nonblocking"]):
        try:
            done = subprocess.run(
                [program, "dump", *how, "--pid", str(pid)],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=timeout,
                errors="replace",
            )
        except subprocess.TimeoutExpired:
            return f"py-spy did not come back from process {pid} within {timeout:g} s\n"
        if done.returncode == 0:
            return done.stdout
    return f"py-spy: status {done.returncode} {done.stderr.strip()}\n"


def _py_spy() -> str | None:
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy")


def stacks(arguments: list[str]) -> int:
    """Prints the stacks of a running program's nodes.

    Args:
      arguments: the command, the run's folder, and names of nodes; none: all.

    Returns:
      The exit status.

    Raises:
      ConfigError: see `status.read`; or there is no such node.
    """
    if len(arguments) < 2:
        raise ConfigError(
            "stacks: name a run's folder, as in `distrl stacks runs/NAME` or "
            "`distrl stacks runs/NAME actor/0`"
        )
    nodes = status.read(arguments[1])["nodes"]
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
        request(run, {"stacks": names})
    deadline = time.monotonic() + _DUMP_S
    for name, path in logs.items():
        text = ""
        while "Thread" not in text and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
            text = path.read_bytes()[before[name] :].decode(errors="replace")
        yield name, text or f"none came within {_DUMP_S:g} s; see {path}\n"
