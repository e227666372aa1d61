"""Measures the seconds from the command to the first learner step, and to a solved CartPole-v1.

Each run is `distrl train` as a user starts it. Cold: what is compiled is kept in a new folder;
warm: in that of the run before. Topologies alternate in one run, so that a noisy machine affects
them alike. `light_env, 4 actors` has a learner, an inferencer, a replay and four actors.

  python benchmarks/startup.py --rounds=5 --out=benchmarks/startup.md
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

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
_LINE = re.compile(r"start-up: ([\d.]+) s")


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
        match = _LINE.search(done.stdout)
        if done.returncode or match is None:
            raise SystemExit(f"{' '.join(command)} exited {done.returncode}\n{done.stdout[-3000:]}")
        return float(match.group(1)), seconds


def main() -> None:
    """Measures, then prints and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="the name of a program; all unless given")
    parser.add_argument("--out", help="a Markdown file for the table")
    args = parser.parse_args()
    names = [name for name in PROGRAMS if args.only in ("", name)]
    columns = (
        "CartPole-v1, cold", "CartPole-v1, warm", "CartPole-v1 solved, warm",
        "Pong-v5, cold", "Pong-v5, warm",
    )  # fmt: skip
    seconds = {name: {column: list[float]() for column in columns} for name in names}
    for index in range(args.rounds):
        for name in names:
            with tempfile.TemporaryDirectory() as cache:
                one = [*PROGRAMS[name], "--config.goal.max_learner_steps=1"]
                found = seconds[name]
                for env in ("CartPole-v1", "Pong-v5"):
                    for state in ("cold", "warm"):
                        figures = run([f"--env={env}", *one], cache)
                        found[f"{env}, {state}"].append(figures[0])
                flags = ["--env=CartPole-v1", f"--seed={index}", *PROGRAMS[name]]
                found["CartPole-v1 solved, warm"].append(run(flags, cache)[1])
            last = ", ".join(f"{column} {runs[-1]:.1f}" for column, runs in found.items())
            print(f"{index} {name}: {last}", flush=True)
    lines = [f"| | {' | '.join(columns)} |", "|---|" + "---|" * len(columns)]
    for name in names:
        medians = [f"{statistics.median(seconds[name][column]):.1f}" for column in columns]
        lines.append(f"| {name} | {' | '.join(medians)} |")
    print("\n".join(lines))
    if args.out:
        command = " ".join(["python benchmarks/startup.py", *sys.argv[1:]])
        Path(args.out).write_text(
            f"# Start-up\n\n{(__doc__ or '').split('  python')[0].strip()}\n\n`{command}`, on "
            f"{os.cpu_count()} cores, seconds, medians:\n\n" + "\n".join(lines) + "\n"
        )


if __name__ == "__main__":
    main()
