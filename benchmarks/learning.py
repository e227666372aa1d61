"""What the agents learn: environment steps and wall time to a return, for several seeds.

Each run is `distrl train` as a user starts it; it ends at its goal, or fails at its time limit.

  python benchmarks/learning.py --seeds=3 --jobs=2 --out=docs/results.md
  python benchmarks/learning.py --only=CartPole --topology=heavy_env --seeds=1

With matplotlib installed it draws the curves too (`--plot=docs/results.png`).
"""

import argparse
import concurrent.futures
import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent


class Task(NamedTuple):
    """What is to be learned, and by whom."""

    env: str  # a name, or an example's FILE:NAME
    agents: tuple[str, ...]
    goal: float  # mean return of the last `window` episodes
    seconds: float  # limit of a run
    window: int = 100


TASKS = (
    Task("CartPole-v1", ("impala", "ppo", "a2c", "dqn", "r2d2"), 475, 240),
    Task("Acrobot-v1", ("ppo", "dqn"), -100, 300),
    Task("LunarLander-v2", ("ppo", "dqn"), 200, 900),
    Task("Pendulum-v1", ("sac", "td3", "ddpg"), -200, 400, 20),
    Task("HalfCheetah-v4", ("ppo",), 2_000, 400, 20),
    Task("examples/recall.py", ("impala", "r2d2", "feed_forward"), 0.9, 120),
)


class Outcome(NamedTuple):
    """Of a run. Curve: seconds, environment steps acted, mean return."""

    reached: bool
    steps: int
    seconds: float
    mean_return: float
    curve: list[tuple[float, int, float]]


def command(task: Task, agent: str, topology: str) -> list[str]:
    """What a user types, without seed and run folder."""
    what = (
        [f"--experiment={task.env}:{agent}"]
        if task.env.endswith(".py")
        else [f"--env={task.env}", f"--agent={agent}"]
    )
    return [
        *what, f"--topology={topology}", f"--config.goal.mean_return={task.goal:g}",
        f"--config.goal.window={task.window}", f"--config.goal.max_seconds={task.seconds:g}",
    ]  # fmt: skip


def run(task: Task, agent: str, topology: str, seed: int, core: int | None) -> Outcome:
    """One run, kept to `core` if one is given."""

    def pin() -> None:
        if core is not None:
            os.sched_setaffinity(0, {core})

    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        began = time.monotonic()
        done = subprocess.run(
            [
                sys.executable, "-m", "launch.main", "train", *command(task, agent, topology),
                f"--seed={seed}", f"--run_dir={run_dir}",
            ],
            cwd=HERE.parent, capture_output=True, text=True, preexec_fn=pin,
            timeout=2 * task.seconds + 120,
        )  # fmt: skip
        seconds = time.monotonic() - began
        result = json.loads((run_dir / "result.json").read_text())
        if done.returncode not in (0, 1) or result["status"] != "finished":
            print(f"  exit {done.returncode}: {result['reason']}", flush=True)
        with open(run_dir / "metrics.csv") as file:
            rows = [row for row in csv.DictReader(file) if row["mean_return"]]
        curve = [
            (float(r["seconds"]), int(r["env_steps_acted"]), float(r["mean_return"])) for r in rows
        ]
        return Outcome(done.returncode == 0, curve[-1][1], seconds, curve[-1][2], curve)


def main() -> None:
    """Runs everything, prints and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, each on a core")
    parser.add_argument("--only", default="", help="parts of TASK/AGENT, with commas")
    parser.add_argument("--topology", default="single_process")
    parser.add_argument("--out", help="a Markdown file for the table")
    parser.add_argument("--plot", help="a file for the curves; needs matplotlib")
    args = parser.parse_args()
    cases = [
        (task, agent)
        for task in TASKS
        for agent in task.agents
        if any(part in f"{task.env}/{agent}" for part in args.only.split(","))
    ]
    cores = sorted(os.sched_getaffinity(0)) if args.topology == "single_process" else []
    jobs = [(task, agent, seed) for task, agent in cases for seed in range(args.seeds)]
    found: dict[tuple[str, str], list[Outcome]] = {(t.env, a): [] for t, a in cases}
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        free = list(range(args.jobs))

        def one(job: tuple[Task, str, int]) -> Outcome:
            slot = free.pop()
            try:
                core = cores[slot % len(cores)] if cores else None
                return run(job[0], job[1], args.topology, job[2], core)
            finally:
                free.append(slot)

        for (task, agent, seed), outcome in zip(jobs, pool.map(one, jobs), strict=True):
            found[task.env, agent].append(outcome)
            how = "reached" if outcome.reached else "NOT reached"
            print(
                f"{task.env} {agent} seed {seed}: {how}"
                f" {outcome.mean_return:.1f}, {outcome.steps:,} steps, {outcome.seconds:.0f} s",
                flush=True,
            )
    lines = table(cases, found, args.topology)
    print("\n".join(lines))
    if args.out:
        typed = " ".join(["python benchmarks/learning.py", *sys.argv[1:]])
        Path(args.out).write_text(
            "# Results\n\nMean returns of the last episodes in training (100, or as the command "
            "says), exploration included; environment steps acted and wall time, start-up and "
            f"compilation included, by seed from 0 on.\n\n`{typed}`, on {os.cpu_count()} cores, "
            "each run kept to one:\n\n" + "\n".join(lines) + "\n"
        )
    if args.plot:
        plot(cases, found, args.plot)


def table(
    cases: list[tuple[Task, str]], found: dict[tuple[str, str], list[Outcome]], topology: str
) -> list[str]:
    """The outcomes in Markdown."""
    lines = [
        "| task | agent | goal | reached | steps acted | seconds | `distrl train ...` |",
        "|---|---|---|---|---|---|---|",
    ]
    for task, agent in cases:
        runs = found[task.env, agent]
        steps = ", ".join(f"{one.steps / 1000:.0f}k" for one in runs)
        seconds = ", ".join(f"{one.seconds:.0f}" for one in runs)
        missed = ", ".join(f"{one.mean_return:.4g}" for one in runs if not one.reached)
        reached = f"{sum(one.reached for one in runs)} of {len(runs)}"
        lines.append(
            f"| {Path(task.env).stem} | {agent} | {task.goal:g} | "
            f"{reached}{f' (others at {missed})' if missed else ''} | {steps} | {seconds} | "
            f"`{' '.join(command(task, agent, topology))}` |"
        )
    return lines


def plot(
    cases: list[tuple[Task, str]], found: dict[tuple[str, str], list[Outcome]], path: str
) -> None:
    """Mean return over environment steps, a panel for each task, a line for each run."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    tasks = list(dict.fromkeys(task for task, _ in cases))
    figure, axes = pyplot.subplots(1, len(tasks), figsize=(4 * len(tasks), 3.2), squeeze=False)
    for axis, task in zip(axes[0], tasks, strict=True):
        for number, agent in enumerate(task.agents):
            for at, one in enumerate(found.get((task.env, agent), ())):
                axis.plot(
                    [steps for _, steps, _ in one.curve],
                    [mean for _, _, mean in one.curve],
                    color=f"C{number}",
                    label=agent if at == 0 else None,
                )
        axis.axhline(task.goal, color="grey", linewidth=0.5)
        axis.set(title=Path(task.env).stem, xlabel="environment steps")
        axis.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=80)


if __name__ == "__main__":
    main()
