"""Measures the CPU time that a million environment steps cost in each node, by topology.

CartPole-v1, MLP 2x64, 64 environments: the shapes of `overhead.py`. A node's time is what the
kernel counts for its process, threads of libraries and of the kernel for it included, between two
readings while it trains. It differs less from run to run than wall time on a busy machine does.

  python benchmarks/node_costs.py --rounds=3 --out=benchmarks/node_costs.md
"""

import argparse
import csv
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import overhead

_SKIP_S = 3.0  # after the first rows of metrics
_DEADLINE_S = 120.0
_TICK = os.sysconf("SC_CLK_TCK")


def nodes_of(launcher: int) -> dict[str, float]:
    """Returns CPU seconds of a process and its descendants, by name of the node."""
    parents, used = {}, {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                stat = (folder / "stat").read_text()
            except (FileNotFoundError, ProcessLookupError):  # ended meanwhile
                continue
            name, fields = stat[stat.index("(") + 1 : stat.rindex(")")], stat.rpartition(")")[2]
            parts = fields.split()
            pid = int(folder.name)
            parents[pid] = int(parts[1])
            used[pid] = name, (int(parts[11]) + int(parts[12])) / _TICK
    found: dict[str, float] = {}
    for pid, (name, seconds) in used.items():
        above = pid
        while above in parents and above != launcher:
            above = parents[above]
        if above == launcher:
            node = name.removeprefix("distrl:").partition("/")[0]
            found[node] = found.get(node, 0.0) + seconds
    return found


def acted(run_dir: Path) -> list[tuple[float, int]]:
    """Returns seconds and environment steps of the rows of metrics so far."""
    path = run_dir / "metrics.csv"
    if not path.exists():
        return []
    with open(path) as file:
        rows = [row for row in csv.DictReader(file) if row["env_steps"]]
    return [(float(row["seconds"]), int(row["env_steps"])) for row in rows]


def measure(topology: str, seconds: float) -> dict[str, float]:
    """Returns CPU seconds for a million environment steps, by node."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        command = overhead.command(topology, run_dir, _SKIP_S + seconds + 2.0)
        process = subprocess.Popen(
            command, cwd=overhead.HERE.parent, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            deadline = time.monotonic() + _DEADLINE_S
            while len(acted(run_dir)) < 2:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"{topology} made no row of metrics in {_DEADLINE_S:g} s")
                time.sleep(0.1)
            time.sleep(_SKIP_S)
            before, began = nodes_of(process.pid), time.monotonic()
            time.sleep(seconds)
            after, passed = nodes_of(process.pid), time.monotonic() - began
            process.wait(timeout=60)
        finally:
            process.kill()
            process.wait()
        rows = acted(run_dir)
    rows = [row for row in rows if row[0] >= rows[0][0] + _SKIP_S - 1.0]
    rate = (rows[-1][1] - rows[0][1]) / (rows[-1][0] - rows[0][0])
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
                known = [node for node in nodes if name and node.startswith(name[:6])]
                cost[known[0] if known else "other"] += seconds
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
