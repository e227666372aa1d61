"""Measures the seconds from the command to the first learner step, and to a solved CartPole-v1.

Each run is `distrl train` as a user starts it. Cold: what is compiled is kept in a new folder;
warm: in that of the run before. Topologies alternate in one run, so that a noisy machine affects
them alike; so does the hand-written loop of `overhead.py`, which says how fast the machine is.
`light_env, 4 actors` has a learner, an inferencer, a replay and four actors. `--only=_` leaves
`auto` out.

  python benchmarks/startup.py --rounds=5 --out=benchmarks/startup.md
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
import report

HERE = Path(__file__).parent
PROGRAMS = {
    "single_process": ["--topology=single_process"],
    "heavy_env": ["--topology=heavy_env"],
    "light_env": ["--topology=light_env"],
    "light_env, 4 actors": [
        "--topology=light_env", "--config.actors.num_actors=4", "--config.actors.num_envs=16"
    ],
    "auto": ["--topology=auto"],
}  # fmt: skip
_LIMIT_S = 300.0
_SOLVED = "CartPole-v1 solved, warm"


def run(flags: list[str], cache: str) -> tuple[float, float]:
    """Returns the seconds to the first learner step, and to the end, of a run that must end."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable, "-m", "distrl", "train", f"--run_dir={folder}/run", *flags
        ]  # fmt: skip
        began = time.monotonic()
        done = subprocess.run(
            command,
            cwd=HERE.parent,
            env={**os.environ, "DISTRL_COMPILATION_CACHE": cache},
            timeout=_LIMIT_S,
            capture_output=True,
            text=True,
            check=False,
        )
        seconds = time.monotonic() - began
        match = overhead.START_UP.search(done.stdout)
        if done.returncode or match is None:
            raise SystemExit(f"{' '.join(command)} exited {done.returncode}\n{done.stdout[-3000:]}")
        return float(match.group(1)), seconds


def main() -> None:
    """Measures, then prints and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="part of the names of programs")
    parser.add_argument("--envs", default="CartPole-v1,Pong-v5", help="names, for a first step")
    parser.add_argument("--out", help="a Markdown file for the table")
    args = parser.parse_args()
    names = [name for name in PROGRAMS if args.only in name]
    environments = args.envs.split(",")
    columns = [f"{env}, {state}" for env in environments for state in ("cold", "warm")]
    columns.append(_SOLVED)
    seconds = {name: {column: list[float]() for column in columns} for name in names}
    load, hand = report.load(), []
    for index in range(args.rounds):
        hand.append(overhead.hand_loop(overhead.TASKS["cartpole"], 3.0)[0])
        for name in names:
            with tempfile.TemporaryDirectory() as cache:
                one = [*PROGRAMS[name], "--config.goal.max_learner_steps=1"]
                found = seconds[name]
                for env in environments:
                    for state in ("cold", "warm"):
                        figures = run([f"--env={env}", *one], cache)
                        found[f"{env}, {state}"].append(figures[0])
                flags = ["--env=CartPole-v1", f"--seed={index}", *PROGRAMS[name]]
                found[_SOLVED].append(run(flags, cache)[1])
            last = ", ".join(f"{column} {runs[-1]:.1f}" for column, runs in found.items())
            print(f"{index} {name}: {last}", flush=True)
    rows = [
        [name, *(f"{statistics.median(seconds[name][column]):.1f}" for column in columns)]
        for name in names
    ]
    speed = f"The pinned hand loop, once in each round: {statistics.median(hand):,.0f} steps/s."
    report.write(
        args.out,
        "Start-up",
        __doc__,
        f"seconds, medians of {args.rounds} rounds with a seed each, {load}",
        [*report.table(["topology", *columns], rows), "", speed],
    )


if __name__ == "__main__":
    main()
