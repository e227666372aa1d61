"""Measures the cost of transport: every topology against a hand-written loop without any.

All alternate in one run, so that a noisy machine affects them alike: the loop of `hand_loop.py` and
`single_process`, each pinned to one core, then `heavy_env` and `light_env` on all cores.
CartPole-v1, MLP 2x64, 64 environments (2 actors x 32 in heavy_env, 1 x 64 in light_env, where two
cores have an inferencer and a learner besides), 20-step unrolls, batches of 64 unrolls. Figures are
environment steps that the learner trained on, per second.

  python benchmarks/overhead.py --rounds=5 --seconds=10 --out=benchmarks/overhead.md
"""

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import report

HERE = Path(__file__).parent
TOPOLOGIES = {"single_process": 0.95, "heavy_env": 1.3, "light_env": 0.8}
"""Name to the ratio that is aimed at."""
_FLAGS = {"light_env": ["--config.actors.num_actors=1", "--config.actors.num_envs=64"]}
WARM_UP = 3.0  # seconds to skip after the first row of metrics


def hand_loop(seconds: float) -> float:
    """Returns the rate of the loop without transport, pinned to core 0."""
    command = [sys.executable, str(HERE / "hand_loop.py"), f"--seconds={seconds}", "--core=0"]
    out = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return float(out.stdout.split()[-1])


def flags(topology: str) -> list[str]:
    """Returns the flags of a run."""
    return ["--env=CartPole-v1", f"--topology={topology}", *_FLAGS.get(topology, ())]


def rows(run_dir: Path, column: str) -> list[tuple[float, int]]:
    """Returns the seconds and a count of the rows of metrics so far."""
    path = run_dir / "metrics.csv"
    if not path.exists():
        return []
    with open(path) as file:
        return [(float(r["seconds"]), int(r[column])) for r in csv.DictReader(file) if r[column]]


def rate(run_dir: Path, column: str) -> float:
    """Returns by how much a count has risen a second, after the warm-up."""
    counts = rows(run_dir, column)
    counts = [row for row in counts if row[0] >= counts[0][0] + WARM_UP - 1.0]
    (t0, n0), (t1, n1) = counts[0], counts[-1]
    return (n1 - n0) / (t1 - t0)


def trained(topology: str, seconds: float, extra: list[str]) -> float:
    """Returns the rate of `distrl train` under `topology`, from its own metrics."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        command = [
            sys.executable, "-m", "distrl", "train", f"--run_dir={run_dir}",
            f"--config.goal.max_seconds={seconds + WARM_UP}", *flags(topology), *extra,
        ]  # fmt: skip

        def pin() -> None:
            os.sched_setaffinity(0, {0})

        subprocess.run(
            command,
            check=True,
            timeout=180,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=pin if topology == "single_process" else None,
            cwd=HERE.parent,
        )
        return rate(run_dir, "trained_steps")


def main() -> None:
    """Measures, then prints and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--out", help="a Markdown file for the table")
    args, extra = parser.parse_known_args()
    load = report.load()
    figures: dict[str, list[float]] = {name: [] for name in ("hand loop", *TOPOLOGIES)}
    for round_index in range(args.rounds):
        figures["hand loop"].append(hand_loop(args.seconds))
        for topology in TOPOLOGIES:
            figures[topology].append(trained(topology, args.seconds, extra))
        print(
            round_index,
            json.dumps({name: round(runs[-1]) for name, runs in figures.items()}),
            flush=True,
        )
    table = []
    for name, runs in figures.items():
        ratios = [a / b for a, b in zip(runs, figures["hand loop"], strict=True)]
        table.append(
            [
                name,
                f"{statistics.median(runs):,.0f}",
                " ".join(f"{run / 1000:.0f}k" for run in runs),
                f"{statistics.median(ratios):.2f}",
                f"{TOPOLOGIES.get(name, '')}",
            ]
        )
    header = ["", "env steps/s, median", "all rounds", "ratio, median of rounds", "aim"]
    report.write(args.out, "Overhead", __doc__, load, report.table(header, table))


if __name__ == "__main__":
    main()
