"""`distrl profile RUN NODE`: a flame graph and a JAX trace of a process that runs."""

import subprocess
import sys
import time
from pathlib import Path

from distrl.errors import ConfigError
from distrl.launch.local.tracing import PERFETTO, order_trace, takes_orders
from distrl.launch.runs.arguments import Parser
from distrl.launch.runs.run import Run, load_run
from distrl.launch.supervision.launcher_process import is_running, local_launcher
from distrl.launch.supervision.result import EXIT_FAILED, EXIT_FINISHED
from distrl.launch.supervision.stack_dump import py_spy
from distrl.launch.supervision.status_file import read_status

_WRITE_S = 60.0  # for py-spy to attach, and to write the graph
_RATE = 100  # samples a second


def profile(arguments: list[str]) -> int:
    """Profiles a node of a running program, or the process of `single_process`.

    Args:
      arguments: the command, the run folder, the node's name, and flags; see the help.

    Returns:
      The exit status: 1 if there is neither a graph nor a trace.

    Raises:
      ConfigError: nothing runs there, or it has no such node.
    """
    values = (
        Parser("profile")
        .add("run")
        .add("node", nargs="?")
        .add("--seconds", type=float, default=5.0)
        .add("--out")
        .parse_args(arguments[1:])
    )
    if not 0 < values.seconds < 3600:
        raise ConfigError(f"profile: --seconds={values.seconds:g}: expected 0 to 3600")
    run = load_run(values.run, command="profile")
    name, pid = _process(run, values.node)
    moment = time.strftime("%Y%m%d-%H%M%S")
    plain = name.replace("/", "-")
    out = Path(values.out) if values.out else run.path / "profiles" / f"{plain}-{moment}"
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"profile: --out={out}: {error.strerror}") from error
    print(f"{name}, process {pid}: {values.seconds:g} s each", flush=True)
    problems = [_flame_graph(pid, out / "flame.svg", values.seconds)]
    problems.append(_jax_trace(pid, out / "trace", values.seconds))
    return EXIT_FAILED if all(problems) else EXIT_FINISHED


def _process(run: Run, node: str | None) -> tuple[str, int]:
    """Returns the name and the id of the process to profile."""
    if not is_running(run.path):
        raise ConfigError(f"profile: {run.path} is not running")
    if run.config.get("topology") == "single_process":
        if node not in (None, "single_process"):
            raise ConfigError(f"profile: {run.path} is one process; leave {node!r} out")
        return "single_process", _guarded(local_launcher(run.path, "profile").pid)
    nodes = read_status(str(run.path), "profile")["nodes"]
    if node not in nodes:
        what = "name a node" if node is None else f"unknown node {node!r}; choose from"
        raise ConfigError(f"profile: {what}: {', '.join(nodes)}")
    if nodes[node]["host"]:
        raise ConfigError(
            f"profile: {node} runs on host {nodes[node]['host']}; there: py-spy record --pid "
            f"{nodes[node]['pid']}"
        )
    if nodes[node]["pid"] is None:
        raise ConfigError(f"profile: {node} is not running ({nodes[node]['status']})")
    local_launcher(run.path, "profile")  # raises unless the launcher, and so the node, is here
    return str(node), int(nodes[node]["pid"])


def _guarded(pid: int) -> int:
    """Returns the process that a guard waits for; without a guard, the process itself."""
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return pid
    return next((child for child in map(int, text.split()) if takes_orders(child)), pid)


def _flame_graph(pid: int, path: Path, seconds: float) -> str | None:
    """Writes the flame graph and says so; returns why there is none."""
    program = py_spy()
    if program is None:
        problem = "py-spy is not installed: pip install py-spy"
    else:
        # With --nonblocking the process is not stopped for a sample. Stopping one with many native
        # threads takes so long that most samples are late, and sometimes does not return.
        command = [
            program, "record", "--nonblocking", "--pid", str(pid), "--duration",
            str(max(1, round(seconds))), "--rate", str(_RATE), "--threads", "--output", str(path),
        ]  # fmt: skip
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=seconds + _WRITE_S,
                check=False,
            )
            problem = f"py-spy: {' '.join(done.stderr.split()[-30:])}"
            if done.returncode == 0 and path.exists():
                print(f"{path}: flame graph; open it in a browser", flush=True)
                return None
        except (OSError, subprocess.TimeoutExpired) as error:
            problem = f"py-spy: {error}"
    print(f"no flame graph: {problem}", file=sys.stderr, flush=True)
    return problem


def _jax_trace(pid: int, folder: Path, seconds: float) -> str | None:
    """Writes the trace and says so; returns why there is none."""
    problem: str | None = "its nodes are threads, or it is an older program"
    if takes_orders(pid):
        folder.mkdir(exist_ok=True)
        problem = order_trace(pid, folder, seconds)
    if problem is not None:
        print(f"no JAX trace: {problem}", file=sys.stderr, flush=True)
        return problem
    for path in sorted(folder.rglob(PERFETTO)):
        print(f"{path}: JAX trace; open it at https://ui.perfetto.dev", flush=True)
    print(f"{folder}: the same for TensorBoard with its profile plugin", flush=True)
    return None
