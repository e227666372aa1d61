"""Measures what a program's nodes are made of: the builtin substrate against Launchpad's.

Each topology runs on both substrates, in turns, in one run, with the settings of `overhead.py`:
CartPole-v1, 64 environments. Figures are environment steps that the learner trained on, per second.
With `--machines` programs run over three hosts that are network namespaces of this machine, through
tunnels, as a command with `--hosts=h1,h2,h3` starts them by SSH: learner, replay and inferencers on
the first, an actor on each of the others; of Pong-v5 16 environments in all.

  python benchmarks/substrates.py --rounds=5 --seconds=8 --out=benchmarks/substrates.md
  python benchmarks/substrates.py --machines --rounds=3 --out=benchmarks/substrates_machines.md
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import overhead
import report

TASKS = ("cartpole", "pong")
TOPOLOGIES = ("heavy_env", "light_env")
SUBSTRATES = ("launchpad", "builtin")
AIM = 0.95
_LIMIT_S = 180.0  # of a run

Run = Callable[[str, float], float]  # by substrate and seconds: the rate


def on_this_machine(topology: str) -> Run:
    """Returns what runs CartPole-v1."""

    def run(substrate: str, seconds: float) -> float:
        flags = [f"--substrate={substrate}"]
        return overhead.trained(overhead.TASKS["cartpole"], topology, seconds, flags)[0]

    return run


def on_machines(name: str, topology: str) -> Run:
    """Returns what runs a task of `overhead.py` over hosts."""
    sys.path.insert(0, str(overhead.HERE.parent))
    from tests.support.cluster.hosts import Hosts
    from tests.support.cluster.program import Program

    task = overhead.TASKS[name]

    def run(substrate: str, seconds: float) -> float:
        flags = [
            f"--env={task.env}", f"--agent={task.agent}", f"--substrate={substrate}",
            f"--light={topology == 'light_env'}", "--config.goal.mean_return=None",
            f"--config.goal.max_seconds={seconds + overhead.WARM_UP}",
        ]  # fmt: skip
        with Hosts() as hosts, tempfile.TemporaryDirectory() as folder:
            program = Program(hosts, Path(folder), *flags)
            program.process.wait(_LIMIT_S)
            counts = overhead.rows(program.run_dir, "trained_steps")
            if len(counts) < 3:
                raise SystemExit(f"{name}, {topology}, {substrate}: {program.output}")
            return overhead.rate(program.run_dir, "trained_steps")

    return run


def main() -> None:
    """Measures, then prints and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--machines", action="store_true", help="over three hosts, as root")
    parser.add_argument("--out", help="a Markdown file for the table")
    args = parser.parse_args()
    load = report.load()
    runs: dict[str, Run] = {topology: on_this_machine(topology) for topology in TOPOLOGIES}
    if args.machines:
        runs = {
            f"{overhead.TASKS[name].env}, {topology}": on_machines(name, topology)
            for name in TASKS
            for topology in TOPOLOGIES
        }
    figures: dict[tuple[str, str], list[float]] = {
        (name, substrate): [] for name in runs for substrate in SUBSTRATES
    }
    for index in range(args.rounds):
        # Each is first in every other round.
        for (name, substrate), rates in sorted(figures.items(), reverse=bool(index % 2)):
            rates.append(runs[name](substrate, args.seconds))
            print(index, name, substrate, f"{rates[-1]:,.0f}", flush=True)
    rows = []
    for name in runs:
        ours, theirs = figures[name, "builtin"], figures[name, "launchpad"]
        ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
        medians = [f"{statistics.median(rates):,.0f}" for rates in (theirs, ours)]
        each = " ".join(f"{ratio:.2f}" for ratio in ratios)
        rows.append([name, *medians, each, f"{statistics.median(ratios):.2f}", f"{AIM}"])
    header = ["", "Launchpad", "builtin", "ratios", "median ratio", "aim"]
    about = f"medians of {args.rounds} rounds, {load}"
    title = f"Substrates: {'three hosts' if args.machines else 'one machine'}"
    report.write(args.out, title, __doc__, about, report.table(header, rows))


if __name__ == "__main__":
    main()
