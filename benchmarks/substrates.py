"""Measures what a program's nodes are made of: the builtin substrate against Launchpad's.

Each topology runs on both, in turns, in one run, with the settings of `overhead.py`: CartPole-v1,
64 environments. Figures are environment steps that the learner trained on, per second.

  python benchmarks/substrates.py --rounds=5 --seconds=8 --out=benchmarks/substrates.md
"""

import argparse
import statistics

import overhead
import report

TASK = overhead.TASKS["cartpole"]
TOPOLOGIES = ("heavy_env", "light_env")
SUBSTRATES = ("launchpad", "builtin")
AIM = 0.95


def main() -> None:
    """Measures, then prints and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--out", help="a Markdown file for the table")
    args = parser.parse_args()
    load = report.load()
    figures: dict[tuple[str, str], list[float]] = {
        (topology, substrate): [] for topology in TOPOLOGIES for substrate in SUBSTRATES
    }
    for index in range(args.rounds):
        # Each is first in every other round.
        for (topology, substrate), runs in sorted(figures.items(), reverse=bool(index % 2)):
            flags = [f"--substrate={substrate}"]
            runs.append(overhead.trained(TASK, topology, args.seconds, flags)[0])
            print(index, topology, substrate, f"{runs[-1]:,.0f}", flush=True)
    rows = []
    for topology in TOPOLOGIES:
        ours, theirs = figures[topology, "builtin"], figures[topology, "launchpad"]
        ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
        medians = [f"{statistics.median(runs):,.0f}" for runs in (theirs, ours)]
        each = " ".join(f"{ratio:.2f}" for ratio in ratios)
        rows.append([topology, *medians, each, f"{statistics.median(ratios):.2f}", f"{AIM}"])
    header = ["", "Launchpad", "builtin", "ratios", "median ratio", "aim"]
    about = f"medians of {args.rounds} rounds, {load}"
    report.write(args.out, "Substrates", __doc__, about, report.table(header, rows))


if __name__ == "__main__":
    main()
