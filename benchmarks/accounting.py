"""Measures what it costs that nodes account their time, on and off in turns.

A loop of actor and learner in one process on a cheap environment, with one environment or 32 at
each step. Off, accounts count nothing. Figures are CPU time of this process for each environment
step, medians over the rounds; the ratio is the median over pairs of neighbours. A part of a round
is one update, of some 10 ms: such pairs differ by a tenth for reasons of the machine's, so that it
takes thousands of them to see a difference of a few thousandths. The difference between off and
off says how well it is seen.

  taskset -c 1 python benchmarks/accounting.py --out=benchmarks/accounting.md
"""

import argparse
import dataclasses
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax

from distrl import presets
from distrl.programs.single_process_parts import SingleProcess
from distrl.runtime.time_account import OTHER, TimeAccount, use_account

_LIMIT = 1.01


class Compared(NamedTuple):
    """Microseconds of CPU time for an environment step, and the ratio of both."""

    off: float
    other: float
    ratio: float


def no_account() -> TimeAccount:
    """Returns an account that counts nothing."""
    account = TimeAccount()
    account.switch, account.wait = (lambda state: state), (lambda: OTHER)
    account.lap, account.clock = (lambda state, began: None), (lambda: 0.0)
    return account


def make(num_envs: int) -> SingleProcess:
    """Returns the loop."""
    made = presets.experiment("CartPole-v1", "impala")
    actors = dataclasses.replace(made.actors, num_actors=1, num_envs=num_envs)
    learner = dataclasses.replace(made.learner, batch_size=max(4, num_envs))
    experiment = dataclasses.replace(made, actors=actors, learner=learner)
    return SingleProcess(experiment, printer=lambda line: None)


def cost(loop: SingleProcess, account: TimeAccount) -> float:
    """Returns microseconds of CPU time for an environment step, over an update."""
    own = use_account(account)
    before, began = loop.actor.acted, time.process_time()
    loop.run_once()
    seconds = time.process_time() - began
    use_account(own)
    return 1e6 * seconds / (loop.actor.acted - before)


def compare(loop: SingleProcess, rounds: int, make_other: Callable[[], TimeAccount]) -> Compared:
    """Returns what it costs with no account and with another one, in turns."""
    costs: dict[str, list[float]] = {"off": [], "other": []}
    for number in range(rounds):
        both = [("off", no_account()), ("other", make_other())]
        for name, account in both if number % 2 else reversed(both):
            costs[name].append(cost(loop, account))
    off, other = (statistics.median(costs[name]) for name in ("off", "other"))
    pairs = zip(costs["other"], costs["off"], strict=True)
    return Compared(off, other, statistics.median(x / y for x, y in pairs))


def main() -> None:
    """Measures, then prints and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3000)
    parser.add_argument("--out", help="a Markdown file for the table")
    args = parser.parse_args()
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    lines = [
        "| environments | off, us a step | on | ratio of on to off | of off to off |",
        "|---|---|---|---|---|",
    ]
    passed = True
    for num_envs in (1, 32):
        with make(num_envs) as loop:
            for _ in range(10):
                loop.run_once()  # compiles
            on = compare(loop, args.rounds, TimeAccount)
            same = compare(loop, args.rounds // 3, no_account)
        passed &= on.ratio <= _LIMIT
        row = f"{num_envs} | {on.off:.2f} | {on.other:.2f} | {on.ratio:.4f} | {same.ratio:.4f}"
        lines.append(f"| {row} |")
        print(lines[-1], flush=True)
    print("\n".join(lines))
    if args.out:
        Path(args.out).write_text("\n".join(lines) + "\n")
    raise SystemExit(0 if passed else 1)


if __name__ == "__main__":
    main()
