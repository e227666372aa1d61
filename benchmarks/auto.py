"""Compares what `--topology=auto` chooses with each topology by hand, on several experiments.

`auto` and the topologies alternate in one run, so that a noisy machine affects them alike. Figures
are environment steps that the learner trained on, per second, after a warm-up; of SAC and of the
sleeping environment, which waits 10 ms a step, those that the actors took. `auto` should be within
10 % of the best by hand.

  python benchmarks/auto.py --rounds=3 --seconds=15 --out=benchmarks/auto.md
"""

import argparse
import csv
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import report

HERE = Path(__file__).parent
_SLEEPING = "--env=gym:benchmarks.sleeping_env:Sleeping10-v0"
_ACTED = {"--agent=sac", _SLEEPING}  # few updates fall into a measurement
TOPOLOGIES = ("single_process", "heavy_env", "light_env", "auto")
EXPERIMENTS = {
    "CartPole-v1, IMPALA": ["--env=CartPole-v1"],
    "Pong-v5, IMPALA": ["--env=Pong-v5"],
    "HalfCheetah-v4, PPO": ["--env=HalfCheetah-v4"],
    "sleeping 10 ms, IMPALA": [_SLEEPING],
    "Pendulum-v1, SAC": ["--env=Pendulum-v1", "--agent=sac"],
}
_WARM_UP_S = 3.0  # after the first row of metrics
_LIMIT_S = 300.0


def rate(flags: list[str], topology: str, seconds: float) -> tuple[float, str]:
    """Returns the rate of a run, from its own metrics, and what `auto` said."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        command = [
            sys.executable, "-m", "distrl", "train", *flags, f"--topology={topology}",
            f"--run_dir={run_dir}",
            f"--config.goal.max_seconds={seconds + _WARM_UP_S}",
        ]  # fmt: skip
        done = subprocess.run(
            command,
            timeout=_LIMIT_S + seconds,
            capture_output=True,
            text=True,
            check=False,
            cwd=HERE.parent,
        )
        if not run_dir.is_dir():
            raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
        said = [line for line in done.stdout.splitlines() if line.startswith("distrl: auto: ")]
        column = "env_steps" if _ACTED.intersection(flags) else "trained_steps"
        with open(run_dir / "metrics.csv") as file:
            rows = [(float(r["seconds"]), int(r[column])) for r in csv.DictReader(file)]
        later = [row for row in rows if row[0] >= rows[0][0] + _WARM_UP_S] or rows[-2:]
        (t0, n0), (t1, n1) = later[0], later[-1]
        return (n1 - n0) / max(t1 - t0, 1e-9), said[0].removeprefix(
            "distrl: auto: "
        ) if said else ""


def main() -> None:
    """Measures, then prints and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--only", default="", help="part of an experiment's name")
    parser.add_argument("--out", help="a Markdown file for the table")
    args = parser.parse_args()
    load, rows = report.load(), []
    for name, flags in EXPERIMENTS.items():
        if args.only not in name:
            continue
        rates: dict[str, list[float]] = {topology: [] for topology in TOPOLOGIES}
        chosen: list[str] = []
        for index in range(args.rounds):
            for topology in TOPOLOGIES:
                found, said = rate(flags, topology, args.seconds)
                rates[topology].append(found)
                chosen += [said.partition(":")[0]] if said else []
                if said:
                    print(said, flush=True)
            print(name, index, json.dumps({k: round(v[-1]) for k, v in rates.items()}), flush=True)
        medians = {topology: statistics.median(runs) for topology, runs in rates.items()}
        best = max(medians[topology] for topology in TOPOLOGIES[:3])
        rows.append(
            [
                name,
                *(f"{medians[topology]:,.0f}" for topology in TOPOLOGIES),
                f"{medians['auto'] / best:.2f}",
                ", ".join(dict.fromkeys(chosen)),
            ]
        )
    report.write(
        args.out,
        "The choice of a topology",
        __doc__,
        f"environment steps per second, medians, {load}",
        report.table(["", *TOPOLOGIES, "auto over the best by hand", "chosen"], rows),
    )


if __name__ == "__main__":
    main()
