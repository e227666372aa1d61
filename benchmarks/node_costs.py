"""Measures the CPU time that a million environment steps cost in each node, by topology.

CartPole-v1, MLP 2x64, 64 environments: the shapes of `overhead.py`. A node's time is what the
kernel counts for its process, threads of libraries and of the kernel for it included, between two
readings while it trains. It differs less from run to run than wall time on a busy machine does.

  python benchmarks/node_costs.py --rounds=3 --out=benchmarks/node_costs.md
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import overhead

from distrl.launch.supervision.status_file import read_status
from distrl.launch.supervision.usage import process_usage

_DEADLINE_S = 120.0


def nodes_of(run_dir: Path) -> dict[str, float]:
    """Returns CPU seconds of the nodes' processes so far, by name without the index."""
    found: dict[str, float] = {}
    for name, node in read_status(str(run_dir))["nodes"].items():
        usage = process_usage(node["pid"])
        if usage is not None:
            kind = name.partition("/")[0]
            found[kind] = found.get(kind, 0.0) + usage.cpu
    return found


def measure(topology: str, seconds: float) -> dict[str, float]:
    """Returns CPU seconds for a million environment steps, by node."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        command = overhead.command(topology, run_dir, overhead.WARM_UP + seconds + 2.0)
        process = subprocess.Popen(
            command, cwd=overhead.HERE.parent, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            deadline = time.monotonic() + _DEADLINE_S
            while len(overhead.rows(run_dir, "env_steps")) < 2:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"{topology} made no row of metrics in {_DEADLINE_S:g} s")
                time.sleep(0.1)
            time.sleep(overhead.WARM_UP)
            before, began = nodes_of(run_dir), time.monotonic()
            time.sleep(seconds)
            after, passed = nodes_of(run_dir), time.monotonic() - began
            process.wait(timeout=60)
        finally:
            process.kill()
            process.wait()
        rate = overhead.rate(run_dir, "env_steps")
    millions = rate * passed / 1e6
    return {node: (after[node] - before.get(node, 0.0)) / millions for node in after}


def main() -> None:
    """Measures, then prints and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--out", help="a Markdown file for the table")
    args = parser.parse_args()
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
    lines = [f"| | {' | '.join(nodes)} | all |", "|---|" + "---|" * (len(nodes) + 1)]
    for topology, runs in figures.items():
        cells = [statistics.median(run[node] for run in runs) for node in nodes]
        cells.append(statistics.median(sum(run.values()) for run in runs))
        lines.append(f"| {topology} | {' | '.join(f'{cell:.1f}' for cell in cells)} |")
    print("\n".join(lines))
    if args.out:
        command = " ".join(["python benchmarks/node_costs.py", *sys.argv[1:]])
        text = (__doc__ or "").split("\n\n")[1]
        Path(args.out).write_text(
            f"# CPU time by node\n\n{text}\n\nCPU seconds a million steps, `{command}`, on "
            f"{os.cpu_count()} cores (one process: under other):\n\n" + "\n".join(lines) + "\n"
        )


if __name__ == "__main__":
    main()
