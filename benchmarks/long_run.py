"""Measures whether a step costs more the longer a run takes, in time and in memory.

`distrl train` with CartPole-v1 in two actors of `heavy_env` with 1,024 environments each. For each
tenth of the environment steps, how many were taken a second, the CPU seconds of all nodes for a
million of them, and each node's private memory at its end. The last row is a new and short run
right after it: what the machine is worth by then.

  python benchmarks/long_run.py --steps=100000000 --out=benchmarks/long_run.md
"""

import argparse
import bisect
import itertools
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import node_costs
import overhead
import report

from distrl.launch.supervision.status_file import read_status

_FLAGS = [
    "--config.actors.num_actors=2", "--config.actors.num_envs=1024",
    "--config.goal.mean_return=None",
]  # fmt: skip
_LIMIT_S = 1800.0
_PERIOD_S = 1.0
_SHORT = 20  # the short run has this part of the steps


def memory(run_dir: Path) -> dict[str, float]:
    """Returns the private memory of each node in MB; none before there is a status."""
    if not (run_dir / "status.json").exists():
        return {}
    return {
        name: node["resident_mb"] - node["shared_mb"]
        for name, node in read_status(str(run_dir))["nodes"].items()
        if "resident_mb" in node
    }


class Sample(NamedTuple):
    """What was seen at one moment of a run."""

    steps: int
    cpu_seconds: float  # of all nodes so far
    memory: dict[str, float]  # of each node


def run(steps: int) -> tuple[list[tuple[float, int]], list[Sample]]:
    """Returns seconds and steps of each row of metrics, and what was seen meanwhile."""
    samples: list[Sample] = []
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        command = [
            sys.executable, "-m", "distrl", "train", "--env=CartPole-v1", "--topology=heavy_env",
            f"--run_dir={run_dir}", f"--config.goal.max_env_steps={steps}", *_FLAGS,
        ]  # fmt: skip
        process = subprocess.Popen(
            command, cwd=overhead.HERE.parent, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + _LIMIT_S
        try:
            while process.poll() is None:
                if time.monotonic() > deadline:
                    raise SystemExit(f"the run did not end within {_LIMIT_S:g} s")
                time.sleep(_PERIOD_S)
                rows = overhead.rows(run_dir, "env_steps")
                found = memory(run_dir)
                cpu = sum(node_costs.nodes_of(run_dir).values()) if found else 0.0
                before = samples[-1].cpu_seconds if samples else 0.0
                if rows and cpu and cpu >= before:  # else some have ended
                    samples.append(Sample(rows[-1][1], cpu, found))
        finally:
            process.kill()
            process.wait()
        if process.returncode:
            raise SystemExit(f"{' '.join(command)} exited {process.returncode}")
        return overhead.rows(run_dir, "env_steps"), samples


def main() -> None:
    """Measures, then prints and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000_000)
    parser.add_argument("--out", help="a Markdown file for the table")
    args = parser.parse_args()
    load = report.load()
    rows, samples = run(args.steps)
    after = run(args.steps // _SHORT)
    names = list(samples[-1].memory)
    lines = []
    for tenth, cells in enumerate(parts(rows, samples, names, 10), 1):
        lines.append([f"{tenth}", *cells])
    lines.append(["new run", *parts(*after, names, 1)[0]])
    report.write(
        args.out,
        "A long run",
        __doc__,
        f"{rows[-1][1]:,} steps in {rows[-1][0]:.0f} s, memory in MB, {load}",
        report.table(["tenth", "env steps/s", "CPU s a million steps", *names], lines),
    )


def parts(
    rows: list[tuple[float, int]], samples: list[Sample], names: list[str], number: int
) -> list[list[str]]:
    """Returns the cells of so many equal parts of a run, after its first row of metrics."""
    counts, seen = [count for _, count in rows], [sample.steps for sample in samples]
    first = counts[0]  # start-up and compilation come before it
    cuts = [first + (counts[-1] - first) * part // number for part in range(number + 1)]
    table = []
    for begin, end in itertools.pairwise(cuts):
        (t0, n0), (t1, n1) = (rows[bisect.bisect_left(counts, cut)] for cut in (begin, end))
        a, b = (samples[max(0, bisect.bisect_right(seen, cut) - 1)] for cut in (begin, end))
        if a.steps == b.steps:
            raise SystemExit("--steps: too few to see each part of the run")
        cpu = (b.cpu_seconds - a.cpu_seconds) / (b.steps - a.steps) * 1e6
        memory = [f"{b.memory.get(name, 0.0):.0f}" for name in names]
        table.append([f"{(n1 - n0) / (t1 - t0):,.0f}", f"{cpu:.2f}", *memory])
    return table


if __name__ == "__main__":
    main()
