"""Measures the CPU time that a million environment steps cost in each node, by topology.

CartPole-v1, MLP 2x64, 64 environments: the shapes of `overhead.py`. A node's time is what the
kernel counts for its process, threads of libraries and of the kernel for it included, between two
readings while it trains. It differs less from run to run than wall time on a busy machine does.

  python benchmarks/node_costs.py --rounds=3 --out=benchmarks/node_costs.md
"""

import argparse
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import overhead
import report

from distrl.launch.supervision.status_file import read_status
from distrl.launch.supervision.usage import process_usage

_DEADLINE_S = 120.0
_ROW_S = 1.5  # somewhat more than between two rows of metrics


def nodes_of(run_dir: Path) -> dict[str, float]:
    """Returns CPU seconds of the nodes' processes so far, by name without the index."""
    found: dict[str, float] = {}
    for name, node in read_status(str(run_dir))["nodes"].items():
        usage = process_usage(node["pid"])
        if usage is not None:
            kind = name.partition("/")[0]
            found[kind] = found.get(kind, 0.0) + usage.cpu
    return found


def watch(flags: Sequence[str], seconds: float) -> tuple[float, dict[str, float]]:
    """Runs `distrl train` with these flags, until it has been watched for so many seconds.

    Returns:
      Environment steps per second, and cores that the nodes kept busy, by name without the index.
    """
    with tempfile.TemporaryDirectory() as folder:
        run_dir, log = Path(folder) / "run", Path(folder) / "log"
        command = [
            sys.executable, "-m", "distrl", "train", f"--run_dir={run_dir}", *flags,
            "--config.goal.mean_return=None",
        ]  # fmt: skip
        with open(log, "w") as file:
            process = subprocess.Popen(
                command, cwd=overhead.HERE.parent, stdout=file, stderr=subprocess.STDOUT
            )
        try:
            deadline = time.monotonic() + _DEADLINE_S
            while len(overhead.rows(run_dir, "env_steps")) < 2:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"{' '.join(command)}: no metrics\n{log.read_text()[-3000:]}")
                time.sleep(0.1)
            time.sleep(overhead.WARM_UP)
            before, began = nodes_of(run_dir), time.monotonic()
            time.sleep(seconds)
            after, passed = nodes_of(run_dir), time.monotonic() - began
            time.sleep(_ROW_S)  # for a row of metrics after it
            process.send_signal(signal.SIGINT)
            process.wait(timeout=60)
        finally:
            process.kill()
            process.wait()
        rate = overhead.rate(run_dir, "env_steps")
    return rate, {node: (after[node] - before.get(node, 0.0)) / passed for node in after}


def measure(topology: str, seconds: float) -> dict[str, float]:
    """Returns CPU seconds for a million environment steps, by node."""
    rate, cores = watch(overhead.TASKS["cartpole"].flags(topology), seconds)
    return {node: 1e6 * busy / rate for node, busy in cores.items()}


def main() -> None:
    """Measures, then prints and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--out", help="a Markdown file for the table")
    args = parser.parse_args()
    load = report.load()
    nodes = ("learner", "inferencer", "actor", "monitor", "other")
    figures: dict[str, list[dict[str, float]]] = {name: [] for name in overhead.TOPOLOGIES}
    for round_index in range(args.rounds):
        for topology, runs in figures.items():
            by_name = measure(topology, args.seconds)
            cost = dict.fromkeys(nodes, 0.0)
            for name, seconds in by_name.items():
                cost[name if name in nodes else "other"] += seconds
            runs.append(cost)
            print(round_index, topology, {k: round(v, 2) for k, v in cost.items()}, flush=True)
    rows = []
    for topology, runs in figures.items():
        cells = [statistics.median(run[node] for run in runs) for node in nodes]
        cells.append(statistics.median(sum(run.values()) for run in runs))
        rows.append([topology, *(f"{cell:.1f}" for cell in cells)])
    report.write(
        args.out,
        "CPU time by node",
        __doc__,
        f"CPU seconds a million steps, medians of {args.rounds} rounds (one process: under other), "
        f"{load}",
        report.table(["topology", *nodes, "all"], rows),
    )


if __name__ == "__main__":
    main()
