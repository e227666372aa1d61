"""Measures how throughput grows with actors whose environments sleep, and use no core meanwhile.

Each actor has one environment, which sleeps 1, 10 or 50 ms a step and does no work; in the last
column four actors have a pool of eight, with a thread each. Figures are environment steps a second,
in brackets their share of as many times the rate of one (linear: 1), and how many cores the nodes
kept busy: where it is all that the machine has, they are what limits. With `--only` the page keeps
its rows of other steps.

  python benchmarks/sleeping.py --seconds=8 --out=benchmarks/sleeping.md
"""

import argparse

import node_costs
import report
from sleeping_env import MILLISECONDS

TOPOLOGIES = ("heavy_env", "light_env")
SIZES = ((1, 1), (8, 1), (32, 1), (4, 8))
"""Actors, and environments of each."""
_FLAGS = ["--config.learner.batch_size=16", "--config.replay.max_size=64"]
_POOL = ["--config.environment.pool.kind=threads", "--config.environment.pool.num_workers=8"]


def main() -> None:
    """Measures, then prints and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument(
        "--only", type=int, default=0, help="milliseconds of a step; all unless given"
    )
    parser.add_argument("--out", help="a Markdown file for the table")
    args = parser.parse_args()
    load, rows = report.load(), []
    steps = [each for each in MILLISECONDS if args.only in (0, each)]
    for milliseconds in steps:
        for topology in TOPOLOGIES:
            cells = [f"{milliseconds} ms", topology]
            one = 0.0
            for actors, envs in SIZES:
                flags = [
                    f"--env=gym:benchmarks.sleeping_env:Sleeping{milliseconds}-v0",
                    f"--topology={topology}", f"--config.actors.num_actors={actors}",
                    f"--config.actors.num_envs={envs}", *_FLAGS, *(_POOL if envs > 1 else ()),
                ]  # fmt: skip
                rate, cores = node_costs.watch(flags, args.seconds)
                one, busy = one or rate, sum(cores.values())
                cells.append(f"{rate:,.0f} ({rate / (actors * envs * one):.2f}), {busy:.2f}")
            print(" ".join(cells), flush=True)
            rows.append(cells)
    measured = {row[0] for row in rows}
    rows += [row for row in report.rows(args.out) if row[0] not in measured]
    rows.sort(key=lambda row: int(row[0].partition(" ")[0]))
    header = ["step", "topology", *(f"{actors} x {envs}" for actors, envs in SIZES)]
    report.write(
        args.out,
        "Environments that sleep",
        __doc__,
        load,
        report.table(header, rows),
    )


if __name__ == "__main__":
    main()
