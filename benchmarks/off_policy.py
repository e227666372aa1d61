"""Measures off-policy agents: updates per second, against a hand-written loop and among topologies.

All alternate in one run, so that a noisy machine affects them alike. The loop of
`hand_off_policy.py` and `single_process` are each pinned to one core; `single_process` on all cores
and `heavy_env` follow. The hand-written loop is there for SAC and TD3.

The update's share is that of the time of the process that makes the updates. `single_process` can
be made faster by no more than 1 / share by having others act and step, unless updates themselves
become faster.

  python benchmarks/off_policy.py --agent=sac --env=Pendulum-v1 --rounds=5 --seconds=8
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

HERE = Path(__file__).parent
HAND = "hand loop, one core"
RUNS = {
    "single_process, one core": ("single_process", True),
    "single_process, all cores": ("single_process", False),
    "heavy_env, all cores": ("heavy_env", False),
}
"""Name to topology, and whether it is pinned to core 0."""
_WARM_UP = 3.0  # seconds to skip after the first row of metrics
_SHARE = "time_compute"


def hand_loop(agent: str, env: str, seconds: float) -> float:
    """Returns the updates per second of the loop without transport, pinned to core 0."""
    command = [
        sys.executable, str(HERE / "hand_off_policy.py"), f"--agent={agent}", f"--env={env}",
        f"--seconds={seconds}", "--core=0",
    ]  # fmt: skip
    out = subprocess.run(command, capture_output=True, text=True, check=True, timeout=180)
    return float(out.stdout.split()[-1])


def trained(
    agent: str, env: str, topology: str, pinned: bool, seconds: float
) -> tuple[float, float]:
    """Returns `distrl train`'s updates per second and their share of the time, from its metrics."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        command = [
            sys.executable, "-m", "distrl", "train", f"--env={env}", f"--agent={agent}",
            f"--topology={topology}", f"--run_dir={run_dir}", "--config.goal.mean_return=None",
            "--config.goal.max_env_steps=1000000000000", "--config.checkpoint.period=None",
            f"--config.goal.max_seconds={seconds + _WARM_UP}",
        ]  # fmt: skip

        def pin() -> None:
            os.sched_setaffinity(0, {0})

        subprocess.run(
            command,
            check=True,
            timeout=300,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=pin if pinned else None,
            cwd=HERE.parent,
        )
        with open(run_dir / "metrics.csv") as file:
            rows = [
                (float(row["seconds"]), int(row["learner_steps"]), float(row[_SHARE] or 0))
                for row in csv.DictReader(file)
            ]
    rows = [row for row in rows if row[0] >= rows[0][0] + _WARM_UP - 1.0]
    while rows[-1][1] == rows[-2][1]:  # written as it ended
        rows.pop()
    (t0, n0, _), (t1, n1, _) = rows[0], rows[-1]
    return (n1 - n0) / (t1 - t0), statistics.mean(share for _, _, share in rows[1:])


def main() -> None:
    """Measures, then prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agent", choices=("sac", "td3", "dqn", "r2d2"), default="sac")
    parser.add_argument("--env", default="Pendulum-v1")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=8.0)
    args = parser.parse_args()
    has_hand_loop = args.agent in ("sac", "td3")
    names = [HAND, *RUNS] if has_hand_loop else list(RUNS)
    figures: dict[str, list[float]] = {name: [] for name in names}
    shares: dict[str, list[float]] = {name: [] for name in names}
    for index in range(args.rounds):
        if has_hand_loop:
            figures[HAND].append(hand_loop(args.agent, args.env, args.seconds))
        for name, (topology, pinned) in RUNS.items():
            rate, share = trained(args.agent, args.env, topology, pinned, args.seconds)
            figures[name].append(rate)
            shares[name].append(share)
        latest = {name: round(runs[-1], 1) for name, runs in figures.items()}
        print(index, json.dumps(latest), flush=True)
    print(
        "| | updates/s, median | all rounds | ratio to the first row, median of rounds | the "
        "update's share |"
    )
    print("|---|---|---|---|---|")
    for name, runs in figures.items():
        ratios = [a / b for a, b in zip(runs, figures[names[0]], strict=True)]
        each = " ".join(f"{run:.0f}" for run in runs)
        median, ratio = statistics.median(runs), statistics.median(ratios)
        share = f"{statistics.median(shares[name]):.2f}" if shares[name] else ""
        print(f"| {name} | {median:.1f} | {each} | {ratio:.2f} | {share} |")


if __name__ == "__main__":
    main()
