"""Measures what the agents learn: environment steps and wall time to a return, by seed.

Each run is `distrl train` as a user starts it; it ends at its goal, or fails at its time limit. Its
outcome is appended to `benchmarks/learning.jsonl` when it ends, so that tasks can be run in parts:

  python benchmarks/learning.py --only=CartPole,Pendulum/sac --jobs=2
  python benchmarks/learning.py --only=CartPole --topology=heavy_env --seeds=0,1
  python benchmarks/learning.py --parity  # the same under every topology and replay

`--report` runs nothing: it writes `docs/results.md` and `docs/results.png` from the records.
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
RECORDS = HERE / "learning.jsonl"
MARK = "<!-- made by benchmarks/learning.py --report -->"
CURVE_POINTS = 60  # kept for each run


class Task(NamedTuple):
    """An environment, the agents to train on it, and the goal."""

    env: str  # a name, or an example's FILE:NAME
    agents: tuple[str, ...]
    goal: float  # mean return of the last `window` episodes
    seconds: float  # limit of a run
    window: int = 100
    flags: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return Path(self.env).stem


TASKS = (
    Task("CartPole-v1", ("impala", "ppo", "a2c", "dqn", "r2d2"), 475, 900),
    Task("Acrobot-v1", ("ppo", "dqn"), -100, 900),
    Task("LunarLander-v2", ("ppo", "dqn"), 200, 3600),
    Task("Pendulum-v1", ("sac", "td3", "ddpg"), -200, 1800, 20),
    Task("HalfCheetah-v4", ("ppo",), 2_000, 1200, 20),
    Task("HalfCheetah-v4", ("sac",), 4_000, 7200, 20),
    Task("Pong-v5", ("ppo", "dqn"), -15, 3600, 20, ("--config.agent.network.torso=shallow_cnn",)),
    Task("examples/recall.py", ("impala", "r2d2", "feed_forward"), 0.9, 300),
)

PARITY = (("CartPole-v1", "ppo"), ("CartPole-v1", "impala"), ("CartPole-v1", "dqn"))
VARIANTS = (
    ("single_process", ""),
    ("heavy_env", "shared_memory"),
    ("heavy_env", "reverb"),
    ("light_env", "shared_memory"),
    ("light_env", "reverb"),
)
"""Topology and replay backend."""


class Outcome(NamedTuple):
    """The outcome of a run. Curve: seconds, environment steps acted, mean return."""

    task: str
    agent: str
    topology: str
    seed: int
    command: str
    reached: bool
    steps: int
    seconds: float
    mean_return: float
    curve: list[tuple[float, int, float]]


def command(task: Task, agent: str, topology: str, backend: str = "") -> list[str]:
    """Returns the flags that a user types, without seed and run folder."""
    what = (
        [f"--experiment={task.env}:{agent}"]
        if task.env.endswith(".py")
        else [f"--env={task.env}", f"--agent={agent}"]
    )
    return [
        *what, f"--topology={topology}", f"--config.goal.mean_return={task.goal:g}",
        f"--config.goal.window={task.window}", f"--config.goal.max_seconds={task.seconds:g}",
        *task.flags, *([f"--config.replay.backend={backend}"] if backend else []),
    ]  # fmt: skip


class Job(NamedTuple):
    """A run to do."""

    task: Task
    agent: str
    topology: str
    backend: str
    seed: int


def run(job: Job, core: int | None) -> Outcome:
    """Runs a job, pinned to `core` if one is given."""

    def pin() -> None:
        if core is not None:
            os.sched_setaffinity(0, {core})

    typed = command(*job[:4])
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        began = time.monotonic()
        done = subprocess.run(
            [
                sys.executable, "-m", "distrl", "train", *typed, f"--seed={job.seed}",
                f"--run_dir={run_dir}",
            ],
            cwd=HERE.parent, capture_output=True, text=True, preexec_fn=pin,
            timeout=2 * job.task.seconds + 120, check=False,
        )  # fmt: skip
        seconds = time.monotonic() - began
        result = json.loads((run_dir / "result.json").read_text())
        if done.returncode not in (0, 1):
            print(f"  exit {done.returncode}: {result['reason']}", flush=True)
        with open(run_dir / "metrics.csv") as file:
            rows = [row for row in csv.DictReader(file) if row["mean_return"]]
    curve = [
        (float(r["seconds"]), int(r["env_steps"]), round(float(r["mean_return"]), 2)) for r in rows
    ]
    last = curve[-1]
    every = -(-len(curve) // CURVE_POINTS)
    return Outcome(
        job.task.name, job.agent, variant(job.topology, job.backend), job.seed, " ".join(typed),
        done.returncode == 0, last[1], round(seconds, 1), last[2], [*curve[:-1:every], last],
    )  # fmt: skip


def variant(topology: str, backend: str) -> str:
    """Returns the name for tables, e.g. "heavy_env, reverb"."""
    return f"{topology}, {backend}" if backend else topology


def main() -> None:
    """Runs the selected jobs, or writes the report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--jobs", type=int, default=1, help="concurrent runs, each on a core")
    parser.add_argument("--only", default="", help="comma-separated parts of TASK/AGENT")
    parser.add_argument("--topology", default="single_process")
    parser.add_argument("--parity", action="store_true")
    parser.add_argument("--report", action="store_true")
    args = parser.parse_args()
    if args.report:
        write_report(read_records())
        return
    seeds = [int(seed) for seed in args.seeds.split(",")]
    variants = VARIANTS if args.parity else ((args.topology, ""),)
    jobs = [
        Job(task, agent, topology, backend, seed)
        for task in TASKS
        for agent in task.agents
        if any(part in f"{task.name}/{agent}" for part in args.only.split(","))
        if not args.parity or (task.env, agent) in PARITY
        for topology, backend in variants
        for seed in seeds
    ]
    cores = sorted(os.sched_getaffinity(0))
    free = list(range(args.jobs))

    def one(job: Job) -> Outcome:
        slot = free.pop()
        try:
            alone = job.topology == "single_process"
            return run(job, cores[slot % len(cores)] if alone else None)
        finally:
            free.append(slot)

    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for outcome in pool.map(one, jobs):
            with open(RECORDS, "a") as file:
                file.write(json.dumps(outcome._asdict()) + "\n")
            how = "reached" if outcome.reached else "NOT reached"
            print(
                f"{outcome.task} {outcome.agent} {outcome.topology} seed {outcome.seed}: {how}"
                f" {outcome.mean_return:.1f}, {outcome.steps:,} steps, {outcome.seconds:.0f} s",
                flush=True,
            )


def read_records() -> list[Outcome]:
    """Returns the newest outcome of each task, agent, topology and seed."""
    newest = {}
    for line in RECORDS.read_text().splitlines():
        outcome = Outcome(**json.loads(line))
        newest[outcome[:4]] = outcome
    return list(newest.values())


def write_report(outcomes: list[Outcome]) -> None:
    """Writes the plot and the part of `docs/results.md` below MARK."""
    alone = [one for one in outcomes if one.topology == "single_process"]
    path = HERE.parent / "docs" / "results.md"
    head = path.read_text().partition(MARK)[0]
    lines = [head + MARK, "", "![curves](results.png)", "", *table(alone, by_topology=False)]
    variants = [variant(*one) for one in VARIANTS]
    parity = [
        one
        for one in outcomes
        if one.topology in variants and (one.task, one.agent) in PARITY
    ]  # fmt: skip
    parity.sort(key=lambda one: (PARITY.index((one.task, one.agent)), variants.index(one.topology)))
    lines += ["", "## The same under every topology and replay", ""]
    path.write_text("\n".join([*lines, *table(parity, by_topology=True)]) + "\n")
    plot(alone, str(path.with_suffix(".png")))


def table(outcomes: list[Outcome], by_topology: bool) -> list[str]:
    """Returns a Markdown table of the outcomes, with one row for all seeds."""
    rows: dict[tuple[str, ...], list[Outcome]] = {}
    for one in outcomes:
        rows.setdefault((one.task, one.agent, one.topology), []).append(one)
    last = "topology, replay" if by_topology else "`distrl train ...`"
    lines = [
        f"| task | agent | goal | reached | steps acted | seconds | {last} |",
        "|---|---|---|---|---|---|---|",
    ]
    for (task, agent, topology), runs in rows.items():
        runs.sort(key=lambda one: one.seed)
        steps = ", ".join(f"{one.steps / 1000:.0f}k" for one in runs)
        seconds = ", ".join(f"{one.seconds:.0f}" for one in runs)
        missed = ", ".join(f"{one.mean_return:.4g}" for one in runs if not one.reached)
        reached = f"{sum(one.reached for one in runs)} of {len(runs)}"
        goal = runs[0].command.partition("goal.mean_return=")[2].split()[0]
        lines.append(
            f"| {task} | {agent} | {goal} | "
            f"{reached}{f' (others at {missed})' if missed else ''} | {steps} | {seconds} | "
            f"{topology if by_topology else f'`{runs[0].command}`'} |"
        )
    return lines


def plot(outcomes: list[Outcome], path: str) -> None:
    """Plots mean return over environment steps, with a panel per task and a line per run."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    tasks = list(dict.fromkeys(one.task for one in outcomes))
    columns = 4
    rows = -(-len(tasks) // columns)
    figure, axes = pyplot.subplots(
        rows, columns, figsize=(4 * columns, 3.2 * rows), squeeze=False, layout="constrained"
    )
    for axis in axes.flat[len(tasks) :]:
        axis.axis("off")
    for axis, task in zip(axes.flat, tasks, strict=False):
        runs = [one for one in outcomes if one.task == task]
        agents = list(dict.fromkeys(one.agent for one in runs))
        for number, agent in enumerate(agents):
            of_agent = [one for one in runs if one.agent == agent]
            for at, one in enumerate(of_agent):
                axis.plot(
                    [steps for _, steps, _ in one.curve],
                    [mean for _, _, mean in one.curve],
                    color=f"C{number}",
                    label=agent if at == 0 else None,
                )
        axis.set(title=task, xlabel="environment steps", ylabel="mean return")
        axis.legend(fontsize=7)
    figure.savefig(path, dpi=70)


if __name__ == "__main__":
    main()
