"""Measures environment steps until CartPole-v1 is solved: topologies must agree within the spread.

Each run is `distrl train` as a user starts it; it must exit with status 0. The goal is a mean
return of 475 over the last 100 episodes; steps are those that the actors have taken by then.

  python benchmarks/solve.py --seeds=3 --out=benchmarks/solve.md
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
RUNS = {
    "single_process": ["--topology=single_process"],
    "heavy_env, local_mp": ["--topology=heavy_env", "--lp_launch_type=local_mp"],
    "heavy_env, local_mt": ["--topology=heavy_env", "--lp_launch_type=local_mt"],
    "light_env, local_mp": ["--topology=light_env", "--lp_launch_type=local_mp"],
    "light_env, local_mt": ["--topology=light_env", "--lp_launch_type=local_mt"],
}
AGENTS = {"feed-forward": [], "LSTM": ["--config.agent.network.core=lstm"]}


def solve(flags: list[str], limit: float) -> int:
    """Returns the environment steps; requires exit status 0."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        command = [
            sys.executable, "-m", "distrl", "train", "--env=CartPole-v1",
            f"--run_dir={run_dir}", *flags,
        ]  # fmt: skip
        done = subprocess.run(
            command, cwd=HERE.parent, timeout=limit, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} exited {done.returncode}\n{done.stdout[-3000:]}")
        reason = json.loads((run_dir / "result.json").read_text())["reason"]
        match = re.search(r"after ([\d,]+) environment steps", reason)
        if match is None:
            raise SystemExit(f"{' '.join(command)}: no number of steps in {reason!r}")
        return int(match.group(1).replace(",", ""))


def main() -> None:
    """Measures, then prints and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--limit", type=float, default=300.0, help="deadline of a run in seconds")
    parser.add_argument("--out", help="a Markdown file for the table")
    args = parser.parse_args()
    lines = [
        "| agent | topology | env steps to solve, by seed | median |",
        "|---|---|---|---|",
    ]
    for agent, agent_flags in AGENTS.items():
        for name, flags in RUNS.items():
            steps = [
                solve([*flags, *agent_flags, f"--seed={seed}"], args.limit)
                for seed in range(args.seeds)
            ]
            lines.append(
                f"| {agent} | {name} | {', '.join(f'{n / 1000:.0f}k' for n in steps)} | "
                f"{statistics.median(steps) / 1000:.0f}k |"
            )
            print(lines[-1], flush=True)
    if args.out:
        command = " ".join(["python benchmarks/solve.py", *sys.argv[1:]])
        Path(args.out).write_text(
            f"# Solving CartPole-v1\n\n{(__doc__ or '').split(chr(10) * 2)[1]}\n\n`{command}`, on "
            f"{os.cpu_count()} cores:\n\n" + "\n".join(lines) + "\n"
        )


if __name__ == "__main__":
    main()
