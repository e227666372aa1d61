"""Measures how throughput grows with actors whose environments sleep, and use no core meanwhile.

Each actor has one environment, which sleeps 1, 10 or 50 ms a step and does no work; in the last row
of each four, four actors have a pool of eight, with a thread each. "Share of linear" is the rate,
divided by that of one environment times their number: 1 is linear scaling. "Busy cores" is how many
cores the nodes used on average: where it is all that the machine has, the cores are what limits.

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
            one = 0.0
            for actors, envs in SIZES:
                flags = [
                    f"--env=gym:benchmarks.sleeping_env:Sleeping{milliseconds}-v0",
                    f"--topology={topology}", f"--config.actors.num_actors={actors}",
                    f"--config.actors.num_envs={envs}", *_FLAGS, *(_POOL if envs > 1 else ()),
                ]  # fmt: skip
                rate, cores = node_costs.watch(flags, args.seconds)
                one, busy = one or rate, sum(cores.values())
                row = [
                    f"{milliseconds} ms", topology, str(actors), str(envs), f"{rate:,.0f}",
                    f"{rate / (actors * envs * one):.2f}", f"{busy:.2f}",
                ]  # fmt: skip
                print(" ".join(row), flush=True)
                rows.append(row)
    header = [
        "step", "topology", "actors", "environments each", "env steps/s", "share of linear",
        "busy cores",
    ]  # fmt: skip
    report.write(
        args.out,
        "Environments that sleep",
        __doc__,
        load,
        report.table(header, rows),
    )


if __name__ == "__main__":
    main()
