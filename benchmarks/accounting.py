"""Measures what it costs that nodes account their time, on and off in turns.

A loop of actor and learner in one process on a cheap environment, with one environment or 32 at
each step. Off, accounts count nothing. Figures are CPU time of this process for each environment
step, medians over the rounds; the ratio is the median over pairs of neighbours.

  python benchmarks/accounting.py --rounds=300 --seconds=0.1 --out=benchmarks/accounting.md
"""

import argparse
import dataclasses
import statistics
import time
from pathlib import Path

import jax

from distrl import presets
from distrl.programs.one_process import SingleProcess
from distrl.runtime.time_account import OTHER, TimeAccount, current_account, use_account

_LIMIT = 1.01


def no_account() -> TimeAccount:
    """Returns an account that counts nothing."""
    account = TimeAccount()
    account.switch, account.wait = (lambda state: state), (lambda: OTHER)
    return account


def make(num_envs: int) -> SingleProcess:
    """Returns the loop."""
    made = presets.experiment("CartPole-v1", "impala")
    actors = dataclasses.replace(made.actors, num_actors=1, num_envs=num_envs)
    learner = dataclasses.replace(made.learner, batch_size=32)
    experiment = dataclasses.replace(made, actors=actors, learner=learner)
    return SingleProcess(experiment, printer=lambda line: None)


def cost(loop: SingleProcess, account: TimeAccount, updates: int) -> float:
    """Returns microseconds of CPU time for an environment step."""
    own = use_account(account)
    before, began = loop.actor.acted, time.process_time()
    for _ in range(updates):
        loop.run_once()
    seconds = time.process_time() - began
    use_account(own)
    return 1e6 * seconds / (loop.actor.acted - before)


def main() -> None:
    """Measures, then prints and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=1.0, help="of CPU time, a part of a round")
    parser.add_argument("--out", help="a Markdown file for the table")
    args = parser.parse_args()
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    lines = ["| environments | off, us a step | on | ratio |", "|---|---|---|---|"]
    passed = True
    for num_envs in (1, 32):
        with make(num_envs) as loop:
            cost(loop, current_account(), 3)  # compiles
            step = cost(loop, current_account(), 3)
            updates = max(1, round(args.seconds * 1e6 / (step * 20 * 32)))
            figures: dict[str, list[float]] = {"off": [], "on": []}
            for number in range(args.rounds):
                both = [("off", no_account()), ("on", TimeAccount())]
                for name, account in both if number % 2 else reversed(both):
                    figures[name].append(cost(loop, account, updates))
            off, on = (statistics.median(figures[name]) for name in ("off", "on"))
            pairs = zip(figures["on"], figures["off"], strict=True)
            ratio = statistics.median(x / y for x, y in pairs)
            passed &= ratio <= _LIMIT
            lines.append(f"| {num_envs} | {off:.2f} | {on:.2f} | {ratio:.4f} |")
            print(lines[-1], flush=True)
    print("\n".join(lines))
    if args.out:
        Path(args.out).write_text("\n".join(lines) + "\n")
    raise SystemExit(0 if passed else 1)


if __name__ == "__main__":
    main()
